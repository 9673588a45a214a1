"""Corrections of weights in parts, so that no correction need know stacks of experts.

A correction sees a stack [experts, rows, columns] matrix by matrix: each matrix is a weight of its
own, to the last bit. Balance biases have no correction.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Size, Tensor
from typing_extensions import override

from pipegap.trainer.base.flat import chosen
from pipegap.trainer.corrections.none import NoCorrection, State, Tensors
from pipegap.trainer.optimizers.routing import BALANCE, EXPERTS, Kind

MakeCorrection = Callable[[Sequence[int]], NoCorrection]
"""Makes a correction from the lag of each of its weights."""


def correction_in_parts(
    make: MakeCorrection, lags: Sequence[int], kinds: Sequence[Kind], shapes: Sequence[Size]
) -> NoCorrection:
    """The correction that `make` returns for these lags, for weights of all kinds."""
    if not {EXPERTS, BALANCE} & set(kinds):
        return make(lags)
    corrected = [i for i, kind in enumerate(kinds) if kind != BALANCE]
    pairs = zip(kinds, shapes, strict=True)
    num_parts = [shape[0] if kind == EXPERTS else None for kind, shape in pairs]
    return CorrectionInParts(make, lags, [corrected], num_parts)


class CorrectionInParts(NoCorrection):
    """Has one correction of `make` for each of `groups`, which are numbers of weights.

    A correction computes with all its weights in one call, so a group must be of one device and
    dtype. In place of the stack i a correction sees its `num_parts[i]` matrices; None stands for a
    weight that is seen as a whole, as all are by default. Weights in no group are not corrected.
    """

    def __init__(
        self,
        make: MakeCorrection,
        lags: Sequence[int],
        groups: Iterable[Sequence[int]],
        num_parts: Sequence[int | None] = (),
    ) -> None:
        self._num_parts = num_parts or [None] * len(lags)
        self._are_whole = not any(self._num_parts)
        self._groups = [(group, make(self._parts(group, lags))) for group in groups]
        self.inner = self._groups[0][1] if self._groups else make([])
        """The correction of the first group; those of the others are alike."""
        super().__init__(self.inner.num_updates, lags)
        self.needs_update = self.inner.needs_update  # type: ignore[misc]
        self.reads_ahead = self.inner.reads_ahead  # type: ignore[misc]
        self.looks_ahead = self.inner.looks_ahead  # type: ignore[misc]

    def add(
        self, make: MakeCorrection, lags: Sequence[int], groups: Iterable[Sequence[int]]
    ) -> None:
        """Corrects more weights, whose numbers follow, by corrections of their own."""
        self.lags, self._num_parts = [*self.lags, *lags], [*self._num_parts, *[None] * len(lags)]
        self._groups += [(group, make(self._parts(group, self.lags))) for group in groups]

    def forget(self, make: MakeCorrection, numbers: Collection[int]) -> None:
        """Corrects the weights with these numbers no more; those after them move up.

        The other weights' memory stays, in corrections that are made anew.
        """
        groups, places = self._groups, [i for i in range(len(self.lags)) if i not in numbers]
        states = chosen(self.state(), places)  # before the numbers change
        number_of = {i: number for number, i in enumerate(places)}
        self.lags, self._num_parts = chosen(self.lags, places), chosen(self._num_parts, places)
        self._groups = []
        for group, old_correction in groups:
            renumbered = [number_of[i] for i in group if i in number_of]
            correction = old_correction
            if len(renumbered) < len(group):
                correction = make(self._parts(renumbered, self.lags))
                correction.restore(self._parts(renumbered, states))
            if renumbered:
                self._groups.append((renumbered, correction))
        self.inner = self._groups[0][1] if self._groups else make([])

    @property
    @override
    def moves_weights(self) -> bool:
        return self.inner.moves_weights

    @property
    def changes_gradients(self) -> bool:
        """Whether `gradient` does anything."""
        return type(self.inner).gradient is not NoCorrection.gradient

    @override
    def gradient(self, gradients: Tensors, weights: Tensors, delays: Sequence[int]) -> None:
        for correction, *parts in self._each(gradients, weights, delays):
            correction.gradient(*parts)

    def gradient_of_some(
        self, gradients: Sequence[Tensor | None], weights: Tensors, delays: Sequence[int]
    ) -> None:
        """`gradient`, where the loss may not depend on every weight.

        Raises RuntimeError if the correction changes gradients and a weight has none.
        """
        if not self.changes_gradients:
            return
        present = [gradient for gradient in gradients if gradient is not None]
        if len(present) < len(gradients):
            raise RuntimeError("a correction of gradients needs one of every weight")
        with torch.no_grad():
            self.gradient(present, weights, delays)

    @override
    def look_back(self, delays: Sequence[int]) -> None:
        for correction, parts in self._each(delays):
            correction.look_back(parts)

    @override
    def lr_factor(self, update: int, delay: int) -> float:
        return self.inner.lr_factor(update, delay)

    @override
    def apply(self, weights: Tensors, update: Tensors, delays: Sequence[int]) -> None:
        for correction, *parts in self._each(weights, update, delays):
            correction.apply(*parts)

    @override
    def ahead(self, weights: Tensors, update: Tensors) -> Tensors:
        if not self.reads_ahead:
            return weights
        parts = [correction.ahead(*parts) for correction, *parts in self._each(weights, update)]
        predicted = self._joined(parts, torch.stack)
        return [predicted.get(i, weight) for i, weight in enumerate(weights)]

    @override
    def look_ahead(self, weights: Tensors, update: int, rate: float) -> None:
        for correction, parts in self._each(weights):
            correction.look_ahead(parts, update, rate)

    @override
    def evaluated(self, weights: Tensors) -> Tensors:
        if not self.looks_ahead:
            return weights
        parts = [correction.evaluated(parts) for correction, parts in self._each(weights)]
        tensors = self._joined(parts, torch.stack)  # [experts, rows, columns] of matrices
        return [tensors.get(i, weight) for i, weight in enumerate(weights)]

    @override
    def state(self) -> list[State]:
        """The state of each weight; a stack's state has the stacks of its matrices' tensors."""
        states = self._joined([correction.state() for _, correction in self._groups], _stacked)
        return [states.get(i, {}) for i in range(len(self.lags))]

    @override
    def restore(self, state: Sequence[State]) -> None:
        for correction, parts in self._each(state):
            correction.restore(parts)

    def _each(self, *lists: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """Each correction with its parts of each list, which has an item per weight or is empty."""
        for group, correction in self._groups:
            yield correction, *(self._parts(group, items) if items else [] for items in lists)

    def _parts(self, group: Sequence[int], items: Sequence[Any]) -> Sequence[Any]:
        if self._are_whole:
            return chosen(items, group)
        return [part for i in group for part in _parts_of(items[i], self._num_parts[i])]

    def _joined(
        self, results: Sequence[Sequence[Any]], join: Callable[[list[Any]], Any]
    ) -> dict[int, Any]:
        """What the corrections returned for each weight, by its number; `join` makes one stack."""
        joined = {}
        for (group, _), parts in zip(self._groups, results, strict=True):
            remaining = iter(parts)
            for i in group:
                num = self._num_parts[i]
                joined[i] = next(remaining) if num is None else join([*islice(remaining, num)])
        return joined


def _parts_of(item: Any, num_parts: int | None) -> Sequence[Any]:
    """The parts of a weight's tensor or state; any other item counts for each part."""
    if num_parts is None:
        return [item]
    if isinstance(item, Tensor):
        return item.unbind()
    if isinstance(item, Mapping):
        # Copies: a part of a stack would keep the memory of all of it.
        return [{name: stack[i].clone() for name, stack in item.items()} for i in range(num_parts)]
    return [item] * num_parts


def _stacked(states: Sequence[State]) -> State:
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}
