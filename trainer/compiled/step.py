"""The updates of a compiled stage, after its first one.

Optimizer, Error Feedback and copy of versions of the whole stage are one graph. What it must equal,
but for rounding, is `trainer.stages.update.corrected_update`.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipegap.trainer.compiled.chosen import feedback, rules
from pipegap.trainer.compiled.graphs import Graph, graph_of
from pipegap.trainer.compiled.rules import Key, Rule
from pipegap.trainer.compiled.versions import Blocks, StackedVersions
from pipegap.trainer.corrections.none import NoCorrection


class Block(NamedTuple):
    """What decides the graph of one block.

    `shape` is [members, *shape of a weight], `state` has the shape of each tensor of the rule,
    `numbers` the names of its numbers. The new version is written to other memory than the old one
    if the block `is_late`.
    """

    rule: Rule
    shape: torch.Size
    state: tuple[torch.Size, ...]
    numbers: tuple[str, ...]
    is_late: bool


class UpdateShape(NamedTuple):
    """What decides the graph of a stage's update.

    With `gives_update` the graph returns u_t; with `has_feedback`, which needs this, it also
    corrects by Error Feedback.
    """

    blocks: tuple[Block, ...]
    gives_update: bool
    has_feedback: bool
    num_threads: int


class _Ruled(NamedTuple):
    """A block of weights, the options of its group, its rule, and what the rule keeps, stacked."""

    group: dict[str, Any]
    rule: Rule
    state: list[Tensor]


class _Held(NamedTuple):
    """What updates work on between two releases; `earlier` is u_{t−1} of each block, if the graph
    makes Error Feedback."""

    blocks: list[_Ruled]
    earlier: list[Tensor]
    graph: Graph


class Step:
    """Turns W(t) into W(t + 1) by one graph, if the optimizer has a rule for each weight.

    The tensors of the optimizer's state become parts of stacks, and only the stacks know the
    u_{t−1} of Error Feedback. `release` brings the correction up to date, so that others may read
    or replace both; the next update stacks them again.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        correction: NoCorrection,
        versions: StackedVersions,
        layout: Blocks,
        num_threads: int,
    ) -> None:
        self._optimizer, self._correction, self._versions = optimizer, correction, versions
        self._layout, self._num_threads = layout, num_threads
        self._feedback = feedback(correction)
        self._held: _Held | None = None

    def is_ready(self) -> bool:
        """Whether the next update can be made by the graph; the first one cannot."""
        if self._held is None and self._can_begin():
            self._held = self._hold()
        return self._held is not None

    def release(self) -> None:
        """Lets go of the stacks: the correction gets its u_{t−1} back."""
        if self._held is not None and self._feedback is not None:
            updates = self._layout.tensors(self._held.earlier)
            self._correction.restore([{"update_1": update} for update in updates])
        self._held = None

    @torch.no_grad()
    def __call__(self, delays: Sequence[int], gradients: Sequence[Tensor]) -> None:
        """Makes the next version from one block of clipped gradients per block of weights."""
        assert self._held is not None
        steps = [block.rule.done(block.group, block.state) + 1 for block in self._held.blocks]
        given = self._held.graph(self._numbers(steps, delays), *self._tensors(gradients))
        for group in self._optimizer.param_groups:
            if "step" in group:  # else the graph counts, in the state
                group["step"] += 1
        for block, step in zip(self._held.blocks, steps, strict=True):
            block.rule.renew(block.group, step, block.state)
        if self._feedback is not None:
            self._held.earlier[:] = given
        elif given:
            self._correction.apply(self._versions.master, self._layout.tensors(given), delays)

    def _can_begin(self) -> bool:
        ruled = rules(self._optimizer)
        has_state = (self._optimizer.state.get(w) for w, (_, rule) in ruled.items() if rule.keys)
        return len(ruled) == len(self._versions.master) and all(has_state)

    def _hold(self) -> _Held:
        blocks = [self._ruled(b) for b in range(len(self._layout.members))]
        earlier: list[Tensor] = []
        if self._feedback is not None:
            pairs = zip(self._correction.state(), self._versions.master, strict=True)
            updates = [s["update_1"] if s else torch.zeros_like(weight) for s, weight in pairs]
            earlier = self._layout.stacked(updates)
        return _Held(blocks, earlier, update_graph(self._kind(blocks)))

    def _ruled(self, b: int) -> _Ruled:
        weights = [self._versions.master[i] for i in self._layout.members[b]]
        group, rule = rules(self._optimizer)[weights[0]]
        return _Ruled(group, rule, [self._stacked(weights, key) for key in rule.keys])

    def _stacked(self, weights: Sequence[nn.Parameter], key: Key) -> Tensor:
        """The stack of these weights' tensors at `key`, of which the state then has the parts."""
        *path, last = key
        holders: list[Any] = [self._optimizer.state[weight] for weight in weights]
        for part in path:
            holders = [holder[part] for holder in holders]
        stack = torch.stack([holder[last] for holder in holders])
        for holder, of_part in zip(holders, stack.unbind(), strict=True):
            holder[last] = of_part
        return stack

    def _kind(self, blocks: Sequence[_Ruled]) -> UpdateShape:
        columns = zip(blocks, self._layout.shapes, self._versions.num_slots, strict=True)
        described = tuple(
            Block(
                rule,
                shape,
                tuple(tensor.shape for tensor in state),
                numbers=tuple(rule.numbers(group, 2)),
                is_late=num > 1,
            )
            for (group, rule, state), shape, num in columns
        )
        gives_update = self._correction.moves_weights
        return UpdateShape(described, gives_update, self._feedback is not None, self._num_threads)

    def _numbers(self, steps: Sequence[int], delays: Sequence[int]) -> Tensor:
        assert self._held is not None
        pairs = zip(self._held.blocks, steps, strict=True)
        numbers = [
            n for (group, rule, _), step in pairs for n in rule.numbers(group, step).values()
        ]
        if self._feedback is not None:
            numbers += [self._feedback(delays[i]) for of in self._layout.members for i in of]
        return torch.tensor(numbers, dtype=torch.float32)

    def _tensors(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """What the graph takes of each block, in its order."""
        assert self._held is not None
        tensors: list[Tensor] = []
        for b, (old, new) in enumerate(self._versions.step()):
            tensors += [old] if new is old else [old, new]
            tensors += [gradients[b], *self._held.blocks[b].state, *self._held.earlier[b : b + 1]]
        return tensors


@cache
def update_graph(update: UpdateShape) -> Graph:
    """(numbers, *tensors) → u_t of each block, if the graph gives it.

    `numbers` are those of each block's rule, then the coefficient λ of Error Feedback of each
    member of each block; λ = 0 corrects nothing. The tensors are, block by block, the old version,
    the new one if it lies elsewhere, the gradients, the tensors of the rule, and u_{t−1} with Error
    Feedback. The new version and the tensors of the rule are changed in place.
    """

    def function(numbers: Tensor, *tensors: Tensor) -> list[Tensor]:
        taken, at, given = iter(tensors), 0, []
        coefficients = sum(len(block.numbers) for block in update.blocks)
        for block in update.blocks:
            old = next(taken)
            new = next(taken) if block.is_late else old
            gradients = next(taken)
            state = [next(taken) for _ in block.state]
            values = numbers[at : at + len(block.numbers)].unbind()
            at += len(block.numbers)
            mine = dict(zip(block.numbers, values, strict=True))
            stepped = block.rule.stepped(old, gradients, state, mine)
            if update.gives_update:
                given.append(old - stepped)
            if update.has_feedback:
                factors = numbers[coefficients : coefficients + block.shape[0]]
                coefficients += block.shape[0]
                stepped = stepped + _feedback(given[-1], next(taken), factors)
            new.copy_(stepped)
        return given

    return graph_of(function, _examples(update), update.num_threads)


def _feedback(update: Tensor, earlier: Tensor, factors: Tensor) -> Tensor:
    """λ (u_{t−1} − u_t) of each member, or 0 where u_{t−1} is zero."""
    entries = tuple(range(1, update.ndim))
    factors = factors * (earlier.abs().sum(entries) != 0)
    return factors.view(-1, *[1] * len(entries)) * (earlier - update)


def _examples(update: UpdateShape) -> list[Tensor]:
    num = sum(len(block.numbers) for block in update.blocks)
    num += sum(block.shape[0] for block in update.blocks) if update.has_feedback else 0
    examples = [torch.zeros(num)]
    for block in update.blocks:
        copies = 2 + block.is_late
        examples += [torch.zeros(block.shape) for _ in range(copies)]
        examples += [torch.zeros(shape) for shape in block.state]
        examples += [torch.zeros(block.shape)] if update.has_feedback else []
    return examples
