"""What makes gradients late in a loop that has one batch in flight, and the settings of such late
updates.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import reduce
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten
from typing_extensions import override

from pipegap.trainer.base.flat import GatheredWeights, copy_into, exchange, local
from pipegap.trainer.optimizers.state import copied, options

# What a loop sets between its steps, for updates that are made later than their gradients came.

Options = list[dict[str, Any]]
"""Some options of each parameter group."""
TRAINED = "requires_grad"
"""The name of the option that says, of each weight of a group, whether it requires a gradient."""


class Settings:
    """Options of the groups of `optimizer`, some of which it is yet to see.

    What the loop writes counts from the gradient that comes next, and what the optimizer writes in
    its updates counts at once, for both.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.begin([])

    def begin(self, waiting: Sequence[Options]) -> None:
        """The optimizer has seen what the groups have now, and `waiting` comes next."""
        self._seen = self._now()
        # What the loop wrote last: all that waits, over what the optimizer has seen.
        self._last = reduce(_joined, waiting, self._seen)

    def written(self) -> Options:
        """What the loop has written since this was called before."""
        options_before, self._last = self._last, self._now()
        return _changes(options_before, self._last)

    def unseen(self, written_options: Options) -> Options:
        """The options that an update with `written_options` sees and the groups do not have."""
        return _changes(self._now(), _joined(self._seen, written_options))

    @contextmanager
    def seen_with(self, written_options: Options) -> Iterator[None]:
        """The groups have what the optimizer has seen, and `written_options`, while it lasts."""
        options_now = self._now()
        group_options = [options(group) for group in self._optimizer.param_groups]
        self._put(_joined(self._seen, written_options))
        options_before = self._now()
        try:
            yield
        finally:
            self._seen = self._now()
            # The loop's own objects, such as a tensor for the learning rate, then their values, and
            # over these what the optimizer wrote in its update.
            for group, of_loop in zip(self._optimizer.param_groups, group_options, strict=True):
                group.update(of_loop)
            self._put(options_now)
            self._put(_changes(options_before, self._seen))
            self._last = self._now()

    def _now(self) -> Options:
        return [
            {**copied(options(group)), TRAINED: [w.requires_grad for w in group["params"]]}
            for group in self._optimizer.param_groups
        ]

    @torch.no_grad()
    def _put(self, new_options: Options) -> None:
        """Gives the groups these options; a tensor stays the one that the loop may hold."""
        for group, by_name in zip(self._optimizer.param_groups, copied(new_options), strict=False):
            for name, value in by_name.items():
                value_now = group.get(name)
                if name == TRAINED:
                    for weight, is_trained in zip(group["params"], value, strict=False):
                        weight.requires_grad = is_trained
                elif isinstance(value_now, Tensor) and isinstance(value, Tensor):
                    value_now.copy_(value)
                else:
                    group[name] = value


def _joined(options: Options, newer_options: Options) -> Options:
    return [{**some, **more} for some, more in _pairs(options, newer_options)]


def _changes(old_options: Options, new_options: Options) -> Options:
    return [
        {name: value for name, value in new.items() if not _is_in(old, name, value)}
        for old, new in _pairs(old_options, new_options)
    ]


def _pairs(
    options: Options, other_options: Options
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The options of each group; groups may have been added since."""
    none: dict[str, Any] = {}
    return zip_longest(options, other_options, fillvalue=none)


def _is_in(options: Mapping[str, Any], name: str, value: Any) -> bool:
    if name not in options:
        return False
    leaves, structure = tree_flatten(value)
    other_leaves, of_others = tree_flatten(options[name])
    return structure == of_others and _leaves_are_equal(leaves, other_leaves)


def _leaves_are_equal(leaves: Sequence[Any], other_leaves: Sequence[Any]) -> bool:
    for leaf, other_leaf in zip(leaves, other_leaves, strict=True):
        if isinstance(leaf, Tensor) and isinstance(other_leaf, Tensor):
            if leaf.dtype != other_leaf.dtype or not torch.equal(leaf, other_leaf):
                return False
        elif leaf is not other_leaf:
            with suppress(TypeError, ValueError):  # an array is neither equal nor unequal
                if bool(leaf == other_leaf):
                    continue
            return False
    return True


# What makes gradients late in a loop that has one batch in flight: older weights, or waiting.


class Gradient(NamedTuple):
    """The gradient of a batch, one tensor per weight or None.

    `delay` is its counted delay: the batch's number minus the version that it was taken at.
    """

    batch: int
    tensors: Sequence[Tensor | None]
    delay: int


class Waiting(NamedTuple):
    """The delays of the batches whose updates, or whose forward, come next, and the options that
    came with each gradient that waits; the oldest first."""

    delays: list[int]
    options: list[Options]


State = Mapping[str, Tensor]
"""What must be saved of one weight, by name."""
Update = Callable[[Gradient], Sequence[Tensor]]
"""Turns the newest weights from W(t) into W(t + 1); see `stages.update.corrected_update`."""


class Keeper(ABC):
    """Keeps what a delay needs beside the loop's own `weights`, which the optimizer steps.

    `version(t)` is the version that batch t reads.
    """

    def __init__(self, version: Callable[[int], int]) -> None:
        self.weights: list[nn.Parameter] = []
        self._version = version
        self._hidden: list[Tensor] = []
        """What the next batch reads, while the loop's weights show others."""
        self.gathered = GatheredWeights()
        """What wrappers keep of the loop's weights, to be dropped where these get other content."""

    @abstractmethod
    def add(self, weights: Sequence[nn.Parameter]) -> None:
        """Takes more weights, whose versions have all been what they are now."""

    @abstractmethod
    def forget(self, numbers: Collection[int]) -> None:
        """Lets go of the weights with these numbers in `weights`, and of what is kept of them."""

    @abstractmethod
    def take(self, batch: int, gradient: Sequence[Tensor | None], update: Update) -> None:
        """Takes the gradient of `batch`, the next one, and makes the updates that are due.

        Afterwards the loop has the weights that the next batch reads.
        """

    @abstractmethod
    def at_newest(self) -> AbstractContextManager[None]:
        """The loop's weights have the newest content while it lasts; nobody may run the model."""

    def show(self, weights: Sequence[Tensor]) -> None:
        """Puts the `weights` to evaluate into the loop's own until `hide`."""
        pairs = zip(weights, self.weights, strict=True)
        if any(tensor is not own_weight for tensor, own_weight in pairs):
            self._hidden = [weight.detach().clone() for weight in self.weights]
            self._write(weights)

    def hide(self) -> None:
        """Puts back the weights that the next batch reads."""
        if self._hidden:
            self._write(self._hidden)
            self._hidden = []

    def _write(self, tensors: Sequence[Tensor]) -> None:
        """The loop's weights get this content, between two batches."""
        copy_into(self.weights, tensors)
        self.gathered.drop()

    @abstractmethod
    def finish(self, update: Update) -> None:
        """Makes the updates that still wait, and puts the newest weights into the loop's own."""

    @abstractmethod
    def state(self) -> list[dict[str, Tensor]]:
        """What must be saved, by name, of each weight."""

    @property
    @abstractmethod
    def waiting(self) -> Waiting:
        """What must be saved beside `state`."""

    @abstractmethod
    def restore(self, num_taken: int, state: Sequence[State], waiting: Waiting) -> None:
        """Restores `state` and `waiting` as they were after `num_taken` batches."""


class KeptGradients(Keeper):
    """Gradients wait until the loop's next batch must read a version that they make.

    The updates equal those of `KeptWeights`, to the bit: update t uses the options that came with
    the gradient of batch t. But they are made up to τ steps later, and the last τ gradients wait
    for `finish`. A delay of τ takes τ sets of gradients, and a delay of 0 nothing.
    """

    def __init__(self, version: Callable[[int], int], lag: int, settings: Settings) -> None:
        super().__init__(version)
        self._lag, self._settings = lag, settings
        self._waiting: deque[tuple[Gradient, Options]] = deque()
        self._made = 0

    @override
    def add(self, weights: Sequence[nn.Parameter]) -> None:
        self.weights += weights
        none = [None] * len(weights)  # the gradients that wait are of batches before
        pairs = ((g._replace(tensors=[*g.tensors, *none]), of_loop) for g, of_loop in self._waiting)
        self._waiting = deque(pairs)
        if self._hidden:
            self._hidden += [weight.detach().clone() for weight in weights]

    @override
    def forget(self, numbers: Collection[int]) -> None:
        _delete(self.weights, numbers)
        _delete(self._hidden, numbers)
        for number, (gradient, options_then) in enumerate([*self._waiting]):
            tensors = [*gradient.tensors]
            _delete(tensors, numbers)
            self._waiting[number] = gradient._replace(tensors=tensors), options_then

    @override
    def take(self, batch: int, gradient: Sequence[Tensor | None], update: Update) -> None:
        delay, following = batch - self._made, self._version(batch + 1)
        if following <= batch:  # it waits, and the loop's next backward may write to its tensors
            gradient = [None if tensor is None else tensor.detach().clone() for tensor in gradient]
        self._waiting.append((Gradient(batch, gradient, delay), self._settings.written()))
        self._make(following, update)

    def _make(self, version: int, update: Update) -> None:
        """Makes the updates up to `version`."""
        while self._made < version:
            gradient, options_then = self._waiting.popleft()
            with self._settings.seen_with(options_then):
                update(gradient)  # returns what late reads see, of which here are none
            self._made += 1

    @override
    def at_newest(self) -> AbstractContextManager[None]:
        return nullcontext()

    @override
    def finish(self, update: Update) -> None:
        self._make(self._made + len(self._waiting), update)

    @override
    def state(self) -> list[dict[str, Tensor]]:
        num_unused = self._lag - len(self._waiting)  # all names, always: see KeptWeights
        unused = [[w.detach().clone() for w in self.weights] for _ in range(num_unused)]
        tensors_of = [*(gradient.tensors for gradient, _ in self._waiting), *unused]
        sets = {f"waiting_{i}": tensors for i, tensors in enumerate(tensors_of)}
        if self._hidden:  # else the loop's own weights are a checkpoint's
            sets["read"] = self._hidden
        return [
            {name: t.detach() for name, tensors in sets.items() if (t := tensors[i]) is not None}
            for i in range(len(self.weights))
        ]

    @property
    @override
    def waiting(self) -> Waiting:
        options_then = [options_then for _, options_then in self._waiting]
        if options_then:
            options_then[0] = self._settings.unseen(options_then[0])
        return Waiting([gradient.delay for gradient, _ in self._waiting], options_then)

    @override
    def restore(self, num_taken: int, state: Sequence[State], waiting: Waiting) -> None:
        self._made = num_taken - len(waiting.delays)
        self._waiting.clear()
        self._settings.begin(waiting.options)
        for i, (delay, options_then) in enumerate(zip(*waiting, strict=True)):
            tensors = [None if (g := s.get(f"waiting_{i}")) is None else g.clone() for s in state]
            self._waiting.append((Gradient(self._made + i, tensors, delay), options_then))
        if all("read" in saved for saved in state):
            self._write([saved["read"] for saved in state])


class KeptWeights(Keeper):
    """The loop's weights hold the version that its next batch reads; the newest lies beside.

    A loop that is not ours needs the same parameters all the time (DDP's hooks, FSDP's shards, its
    own references): so their content changes between a step and the next forward, and for the
    optimizer's step they exchange memory with the newest.

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
        for tensors in self._sets():
            tensors += [weight.detach().clone() for weight in weights]

    @override
    def forget(self, numbers: Collection[int]) -> None:
        _delete(self.weights, numbers)
        _delete(self._written, numbers)
        for tensors in self._sets():
            _delete(tensors, numbers)

    def _sets(self) -> list[list[Tensor]]:
        """All that is kept: lists of one tensor per weight."""
        optional_sets = [tensors for tensors in (self._hidden, self._loaded) if tensors]
        late = [] if self._late is self._newest else [self._late]
        return [self._newest, *self._kept.values(), *optional_sets, *late]

    @override
    def take(self, batch: int, gradient: Sequence[Tensor | None], update: Update) -> None:
        self._refuse_writes_of_others()
        following = max(self._version(batch + 1), self._read)  # after a drain it is newer
        delay = batch - self._read
        # `_newest` is W(batch) until the update below makes it W(batch + 1).
        if following == batch:  # the next batch reads W(batch), one update late
            copy_into(self.weights, self._late)
        elif following < batch:
            self._keep(batch)
        if self._read < following < batch:
            copy_into(self.weights, self._kept[following])
        with self._exchanged():  # if it fails, the writes above are refused by the next step
            predicted = update(Gradient(batch, gradient, delay))
        self._late = list(predicted) if self._reads_ahead else self._newest
        if following > batch:  # the next batch is not late
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
        # Memory, not values: the optimizer steps the loop's own parameters, which it has state of.
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
        # torch counts each write in place, for its check of saved tensors.
        self._written = [weight._version for weight in self.weights]

    def _refuse_writes_of_others(self) -> None:
        """Raises RuntimeError if somebody else wrote to the weights: that would be lost.

        A checkpoint's weights may be loaded after its optimizer state if they are the same.
        """
        if self._written == [weight._version for weight in self.weights]:
            return
        pairs = zip(self.weights, self._loaded, strict=True)
        if not (self._loaded and all(torch.equal(local(a), local(b)) for a, b in pairs)):
            raise RuntimeError(
                "the weights were changed since the last step, outside of DelayedOptimizer, which "
                "keeps a newest version of its own: load a checkpoint's optimizer state after its "
                "weights; for a loop that writes to weights (a mask, a clamp, AdaLoRA) pass "
                "keep='gradients', which keeps no weights"
            )

    @override
    def show(self, weights: Sequence[Tensor]) -> None:
        self._refuse_writes_of_others()
        # `weights` were taken in `at_newest`: a parameter among them stands for its newest content.
        rows = zip(weights, self.weights, self._newest, strict=True)
        super().show([newest if tensor is weight else tensor for tensor, weight, newest in rows])

    @override
    def hide(self) -> None:
        self._refuse_writes_of_others()
        super().hide()

    @override
    def finish(self, update: Update) -> None:
        # Every update was made at its step: only what the loop reads is late.
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
            old_weights = self._kept.get(self._num_taken - age)
            # A copy where there is none: what is loaded in place must not be shared.
            sets[f"kept_{age}"] = old_weights or [w.detach().clone() for w in self.weights]
        return [
            {name: tensors[i].detach() for name, tensors in sets.items()}
            for i in range(len(self.weights))
        ]

    @property
    @override
    def waiting(self) -> Waiting:
        return Waiting([self._num_taken - self._read], [])

    @override
    def restore(self, num_taken: int, state: Sequence[State], waiting: Waiting) -> None:
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
        versions_now = [weight._version for weight in self.weights]
        unnoted = [count - noted for count, noted in zip(versions_now, self._written, strict=True)]
        return {**vars(self), "_written": unnoted}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        pairs = zip(self.weights, self._written, strict=True)
        self._written = [weight._version - unnoted for weight, unnoted in pairs]

    @override
    def _write(self, tensors: Sequence[Tensor]) -> None:
        super()._write(tensors)
        self._note_writes()


def _delete(items: list[Any], numbers: Collection[int]) -> None:
    """Deletes the items with these numbers, if there are any items."""
    items[:] = [item for i, item in enumerate(items) if i not in numbers]
