"""The loop reads older weights: forward and backward at W(t − τ), while W(t) lies beside."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from pipegap.trainer.base.flat import local
from pipegap.trainer.delayed.copies import copy_into, exchange
from pipegap.trainer.delayed.keeper import Gradient, Keeper, Update, Waiting


class KeptWeights(Keeper):
    """The loop's weights hold the version that its next batch reads; the newest lies beside.

    `stages.versions.Versions` binds another leaf to the module for each version. A loop that is not
    ours needs the same parameters at the same addresses all the time (DDP's hooks, FSDP's shards,
    its own references), so that here their content changes between a step and the next forward. The
    optimizer knows these very parameters too: for its step they exchange memory with the newest.

    A lag of 1 takes one more set of weights, and each further one another. With `reads_ahead` late
    batches see what the correction predicted, which takes one set more.
    """

    def __init__(self, version: Callable[[int], int], lag: int, *, reads_ahead: bool) -> None:
        super().__init__(version)
        self._newest: list[Tensor] = []
        self._lag, self._reads_ahead = lag, reads_ahead
        self._num_taken = self._read = 0
        self._late = self._newest
        """What late reads of the newest version see."""
        self._kept: dict[int, list[Tensor]] = {}
        self._loaded: list[Tensor] = []
        """What was restored for the next batch to read, until its step."""
        self._written: list[int] = []

    @override
    def add(self, weights: Sequence[nn.Parameter]) -> None:
        self.weights += weights
        self._written += [weight._version for weight in weights]
        sets = [self._newest, *self._kept.values()]
        sets += [of for of in (self._hidden, self._loaded) if of]
        for tensors in sets if self._late is self._newest else [*sets, self._late]:
            tensors += [weight.detach().clone() for weight in weights]

    @override
    def take(self, batch: int, gradient: Sequence[Tensor | None], update: Update) -> None:
        self._refuse_writes_of_others()
        following = max(self._version(batch + 1), self._read)  # after a drain it is newer
        delay = batch - self._read
        if following == batch:
            copy_into(self.weights, self._late)
        elif following < batch:
            self._keep(batch)
        if self._read < following < batch:
            copy_into(self.weights, self._kept[following])
        with self._exchanged():  # if it fails, the writes above are refused by the next step
            ahead = update(Gradient(batch, gradient, delay))
        self._late = list(ahead) if self._reads_ahead else self._newest
        if following > batch:
            copy_into(self.weights, self._newest)
        self._read, self._num_taken = following, batch + 1
        self._kept = {v: tensors for v, tensors in self._kept.items() if v > following}
        self._loaded = []
        self._note_writes()

    @override
    @contextmanager
    def at_newest(self) -> Iterator[None]:
        self._refuse_writes_of_others()
        with self._exchanged():
            yield
        self._note_writes()

    @contextmanager
    def _exchanged(self) -> Iterator[None]:
        exchange(self.weights, self._newest)
        try:
            yield
        finally:
            exchange(self.weights, self._newest)

    def _keep(self, version: int) -> None:
        """Keeps the newest version for the batches that read it after the next one, if any do."""
        batches = range(version + 2, version + self._lag + 1)
        if any(self._version(batch) == version for batch in batches):
            self._kept[version] = [tensor.detach().clone() for tensor in self._late]

    def _note_writes(self) -> None:
        self._written = [weight._version for weight in self.weights]

    def _refuse_writes_of_others(self) -> None:
        """Raises RuntimeError if somebody else wrote to the weights: that would be lost.

        A checkpoint's weights may be loaded after its optimizer state if they are the same.
        """
        is_written = self._written != [weight._version for weight in self.weights]
        if is_written and not (self._loaded and _are_equal(self.weights, self._loaded)):
            raise RuntimeError(
                "the weights were changed since the last step, outside of DelayedOptimizer, which "
                "keeps a newest version of its own: load a checkpoint's optimizer state after its "
                "weights, or pass keep='gradients', which keeps no weights"
            )

    @override
    def show(self, weights: Sequence[Tensor]) -> None:
        self._refuse_writes_of_others()
        rows = zip(weights, self.weights, self._newest, strict=True)
        super().show([newest if shown is weight else shown for shown, weight, newest in rows])

    @override
    def hide(self) -> None:
        self._refuse_writes_of_others()
        super().hide()

    @override
    def finish(self, update: Update) -> None:
        self._read, self._kept = self._num_taken, {}
        self._write(self._newest)

    @override
    def state(self) -> list[dict[str, Tensor]]:
        sets: dict[str, Sequence[Tensor]] = {
            "newest": self._newest,
            "read": self._hidden or self.weights,
        }
        if self._late is not self._newest:
            sets["late"] = self._late
        for age in range(1, self._lag):  # always all names: distributed checkpoints need that
            kept = self._kept.get(self._num_taken - age)
            # A copy where there is none: what is loaded in place must not be shared.
            sets[f"kept_{age}"] = kept or [weight.detach().clone() for weight in self.weights]
        return [
            {name: tensors[i].detach() for name, tensors in sets.items()}
            for i in range(len(self.weights))
        ]

    @property
    @override
    def waiting(self) -> Waiting:
        return Waiting([self._num_taken - self._read], [])

    @override
    def restore(
        self, num_taken: int, state: Sequence[Mapping[str, Tensor]], waiting: Waiting
    ) -> None:
        self._num_taken, self._read = num_taken, num_taken - waiting.delays[0]
        copy_into(self._newest, [saved["newest"] for saved in state])
        self._loaded = [saved["read"] for saved in state]
        self._write(self._loaded)
        if "late" in state[0]:
            self._late = [saved["late"].clone() for saved in state]
        ages = range(1, min(self._lag, waiting.delays[0]))
        self._kept = {
            num_taken - age: [saved[f"kept_{age}"].clone() for saved in state] for age in ages
        }

    def __getstate__(self) -> dict[str, Any]:
        """A copy's weights count their writes anew: what matters is how many were not noted."""
        now = [weight._version for weight in self.weights]
        unnoted = [count - noted for count, noted in zip(now, self._written, strict=True)]
        return {**vars(self), "_written": unnoted}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        pairs = zip(self.weights, self._written, strict=True)
        self._written = [weight._version - unnoted for weight, unnoted in pairs]

    @override
    def _write(self, tensors: Sequence[Tensor]) -> None:
        super()._write(tensors)
        self._note_writes()


def _are_equal(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    pairs = zip(tensors, others, strict=True)
    return all(torch.equal(local(a), local(b)) for a, b in pairs)
