"""The update of a batch, from a gradient that is late: the user's own step, then the correction."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from trainer.base.build import build
from trainer.base.ranges import MAX_COUNT
from trainer.corrections.none import NoCorrection, State
from trainer.delayed.arm import Node
from trainer.delayed.kept_weights import alike, copy_into
from trainer.optimizers.hyperball import on_spheres
from trainer.stages.in_parts import CorrectionInParts
from trainer.torch_pipelining import refusals
from trainer.torch_pipelining.twins import Twins


class LateUpdate:
    """Makes W(t+1) of W(t): moves the gradient of batch t to the newest weights, calls the user's
    `update`, and corrects what it made, as a trial does (`stages.update.corrected_update`).
    """

    def __init__(
        self,
        newest: nn.Module,
        twins: Sequence[nn.Module] | None,
        correction: Node,
        num_updates: int | None,
    ) -> None:
        self._newest, self._node = newest, correction
        self._num_updates = num_updates or MAX_COUNT
        self.twins = Twins(newest, twins, reads_ahead=self._make([1]).reads_ahead)
        self._made: CorrectionInParts | None = None

    def _make(self, lags: Sequence[int]) -> NoCorrection:
        made: NoCorrection = build(self._node, self._num_updates, lags)
        return made

    @property
    def weights(self) -> list[nn.Parameter]:
        """The newest weights."""
        return list(self._newest.parameters())

    @property
    def correction(self) -> CorrectionInParts:
        """Made when it is first needed: until then weights may be loaded, moved or sharded."""
        if self._made is None:
            self._made = self._new_correction()
        return self._made

    def _new_correction(self) -> CorrectionInParts:
        weights = self.weights
        whole, lags = [None] * len(weights), [1] * len(weights)
        return CorrectionInParts(self._make, lags, alike(weights), whole)

    @torch.no_grad()
    def corrected_gradient(self, batch: int) -> list[Tensor | None]:
        """The batch's gradients, one per weight, after a correction of gradients has changed them
        in place. The newest weights must be W(batch).
        """
        gradients = [weight.grad for weight in self.twins.weights(batch)]
        if self.correction.changes_gradients:
            present = [gradient for gradient in gradients if gradient is not None]
            if len(present) < len(gradients):
                raise RuntimeError("a correction of gradients needs one of every weight")
            self.correction.gradient(present, self.weights, self._delays(batch))
        return gradients

    def __call__(self, batch: int, update: Callable[[], object]) -> None:
        """Turns the newest weights from W(batch) into W(batch + 1)."""
        weights, correction = self.weights, self.correction
        for mine, theirs in zip(weights, self.twins.weights(batch), strict=True):
            mine.grad = None if theirs.grad is None else theirs.grad.to(mine.dtype)
            theirs.grad = None
        before = self.twins.make_room(batch)
        if correction.needs_update and not before:
            before = [weight.detach().clone() for weight in weights]
        versions = [weight._version for weight in weights]
        with _steps() as steps:
            update()
        if not steps:
            refusals.require_stepped(weights, versions)
        with torch.no_grad():
            change: list[Tensor] = []
            if correction.needs_update:
                change = [old - new for old, new in zip(before, weights, strict=True)]
            with on_spheres(steps):
                correction.apply(weights, change, self._delays(batch))
            self.twins.show(batch, correction.ahead(weights, change))
        for weight in weights:
            weight.grad = None

    def _delays(self, batch: int) -> list[int]:
        return [self.twins.delay(batch)] * len(self.weights)

    @property
    def _names(self) -> list[str]:
        return [name for name, _ in self._newest.named_parameters()]

    def state(self, batch: int) -> dict[str, Any]:
        """What the next batches compute on and what the correction remembers, by name.

        A schedule that has trained nothing has the same names, since torch.distributed.checkpoint
        loads into the tensors that it finds.
        """
        if not self.twins.is_started:
            self.twins.start(batch)
        late, ahead = ([w.detach() for w in self.twins.weights(b)] for b in (batch, batch + 1))
        memory = self.correction.state()
        blank = self._blank_memory() if batch < 2 else memory
        columns = [{**empty, **column} for empty, column in zip(blank, memory, strict=True)]
        return {
            "delay": self.twins.delay(batch),
            "late": dict(zip(self._names, late, strict=True)),
            # Else the batch after the next one computes on the newest weights.
            "ahead": dict(zip(self._names, ahead, strict=True)) if self.twins.reads_ahead else {},
            "correction": dict(zip(self._names, columns, strict=True)),
            "remembered": sorted({name for column in memory for name in column}),
        }

    def _blank_memory(self) -> list[State]:
        """All that the correction ever remembers, from two updates of zeros with a copy of it."""
        copy = self._new_correction()
        for delay in (0, 1):
            zeros, weights = ([torch.zeros_like(w) for w in self.weights] for _ in range(2))
            copy.gradient(zeros, weights, [delay] * len(weights))
            copy.apply(weights, zeros, [delay] * len(weights))
        return copy.state()

    def restore(self, batch: int, state: Mapping[str, Any]) -> None:
        """Takes back what `state` returned; the newest weights are W(batch)."""
        # Copies: what torch.distributed.checkpoint loads into may be the twins' own memory.
        late, ahead = (
            [state[of][name].clone() for name in self._names if state[of]]
            for of in ("late", "ahead")
        )
        self.twins.start(batch)
        copy_into(self.twins.weights(batch), late)
        if ahead:
            copy_into(self.twins.weights(batch + 1), ahead)
        self.twins.delay_by(batch, int(state["delay"]))
        memory, remembered = state["correction"], state["remembered"]
        self.correction.restore(
            [{k: memory[name][k] for k in remembered if k in memory[name]} for name in self._names]
        )


@contextmanager
def _steps() -> Iterator[list[Optimizer]]:
    """Yields a list that gets every step of an optimizer of torch.

    What a fused or foreach step changes of a DTensor shows in no version of the weight.
    """
    steps: list[Optimizer] = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: steps.append(optimizer))
    try:
        yield steps
    finally:
        hook.remove()
