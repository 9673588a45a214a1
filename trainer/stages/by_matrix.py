"""Corrections see each matrix of a stack as a weight of its own, and no balance biases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Size, Tensor
from typing_extensions import override

from trainer.corrections.none import NoCorrection, State
from trainer.optimizers.routing import BALANCE, EXPERTS, Kind

T = TypeVar("T")


def for_stacks(
    make: Callable[[Sequence[int]], NoCorrection],
    lags: Sequence[int],
    kinds: Sequence[Kind],
    shapes: Sequence[Size],
) -> NoCorrection:
    """The correction that `make` returns for these lags, for weights of all kinds."""
    if not {EXPERTS, BALANCE} & set(kinds):
        return make(lags)
    return EachMatrix(make, lags, kinds, shapes)


class EachMatrix(NoCorrection):
    """Passes on what it gets, matrix by matrix, to the correction that `make` returns."""

    def __init__(
        self,
        make: Callable[[Sequence[int]], NoCorrection],
        lags: Sequence[int],
        kinds: Sequence[Kind],
        shapes: Sequence[Size],
    ) -> None:
        counts: dict[Kind, Callable[[Size], int]] = {EXPERTS: _length, BALANCE: _none}
        self._is_stack = [kind == EXPERTS for kind in kinds]
        self._counts = [
            counts.get(kind, _one)(shape) for kind, shape in zip(kinds, shapes, strict=True)
        ]
        self._inner = make(self._repeated(lags))
        super().__init__(self._inner.num_updates, lags)
        self.needs_update = self._inner.needs_update  # type: ignore[misc]
        self.reads_ahead = self._inner.reads_ahead  # type: ignore[misc]

    @override
    def gradient(
        self, gradients: Sequence[Tensor], weights: Sequence[Tensor], delays: Sequence[int]
    ) -> None:
        self._inner.gradient(self._parts(gradients), self._parts(weights), self._repeated(delays))

    @override
    def lr_factor(self, update: int, delay: int) -> float:
        return self._inner.lr_factor(update, delay)

    @override
    def apply(
        self, weights: Sequence[Tensor], update: Sequence[Tensor], delays: Sequence[int]
    ) -> None:
        self._inner.apply(self._parts(weights), self._parts(update), self._repeated(delays))

    @override
    def ahead(self, weights: Sequence[Tensor], update: Sequence[Tensor]) -> Sequence[Tensor]:
        if not self.reads_ahead:
            return weights
        parts = self._grouped(self._inner.ahead(self._parts(weights), self._parts(update)))
        return [
            torch.stack(of) if is_stack else (*of, weight)[0]
            for weight, of, is_stack in zip(weights, parts, self._is_stack, strict=True)
        ]

    @override
    def num_buffers(self, lag: int) -> int:
        return self._inner.num_buffers(lag)

    @override
    def num_leaves_ahead(self, lag: int) -> int:
        return self._inner.num_leaves_ahead(lag)

    @override
    def state(self) -> list[State]:
        """Of a stack, the stacks of its matrices' tensors."""
        grouped = zip(self._grouped(self._inner.state()), self._is_stack, strict=True)
        return [_stacked(of) if is_stack else (*of, {})[0] for of, is_stack in grouped]

    @override
    def restore(self, state: Sequence[State]) -> None:
        self._inner.restore(
            [
                {name: tensor[i].clone() for name, tensor in of.items()} if is_stack else of
                for of, is_stack, count in zip(state, self._is_stack, self._counts, strict=True)
                for i in range(count)
            ]
        )

    def _parts(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The matrices and other weights, of one tensor per weight; empty if `tensors` is."""
        parts: list[Tensor] = []
        for tensor, is_stack, count in zip(tensors, self._is_stack, self._counts, strict=False):
            parts.extend(tensor.unbind() if is_stack else [tensor] * count)
        return parts

    def _repeated(self, numbers: Sequence[int]) -> list[int]:
        pairs = zip(numbers, self._counts, strict=True)
        return [number for number, count in pairs for _ in range(count)]

    def _grouped(self, parts: Sequence[T]) -> list[list[T]]:
        rest: Iterator[T] = iter(parts)
        return [[next(rest) for _ in range(count)] for count in self._counts]


def _stacked(states: Sequence[State]) -> State:
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def _length(shape: Size) -> int:
    return shape[0]


def _one(shape: Size) -> int:
    return 1


def _none(shape: Size) -> int:
    return 0
