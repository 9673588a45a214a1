"""Weights that can be computed with in one call: on one device or mesh, of one dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from trainer.corrections.none import NoCorrection, State

MakeCorrection = Callable[[Sequence[int]], NoCorrection]
"""Makes a correction from the lag of each of its weights."""


def alike(tensors: Sequence[Tensor]) -> list[list[int]]:
    """The numbers of the tensors, those together that lie on one device or mesh, of one dtype."""
    found: dict[object, list[int]] = {}
    for i, tensor in enumerate(tensors):
        key = (tensor.device, tensor.dtype, getattr(tensor, "device_mesh", None))
        found.setdefault(key, []).append(i)
    return list(found.values())


@torch.no_grad()
def copy(into: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copies the content of each tensor into its counterpart, which is sharded alike."""
    for numbers in alike(into):
        torch._foreach_copy_(
            [local(into[i]) for i in numbers], [local(tensors[i]) for i in numbers]
        )


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor (DTensor), in the same memory; any other as it is."""
    found: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


class CorrectionOfEach(NoCorrection):
    """One correction for each set of weights that are alike; they never see each other's weights.

    A correction computes with all its weights in one call, which a model on several devices, or
    with sharded weights beside others, does not allow.
    """

    def __init__(self, weights: Sequence[Tensor], lag: int, make: MakeCorrection) -> None:
        self._parts = [(numbers, make([lag] * len(numbers))) for numbers in alike(weights)]
        first = self._parts[0][1]
        super().__init__(first.num_updates, [lag] * len(weights))
        self._first = first
        self.needs_update = first.needs_update  # type: ignore[misc]
        self.reads_ahead = first.reads_ahead  # type: ignore[misc]

    @property
    def changes_gradients(self) -> bool:
        """Whether `gradient` does anything."""
        return type(self._first).gradient is not NoCorrection.gradient

    @override
    def gradient(
        self, gradients: Sequence[Tensor], weights: Sequence[Tensor], delays: Sequence[int]
    ) -> None:
        for part, *of in self._each(gradients, weights, delays):
            part.gradient(*of)

    @override
    def lr_factor(self, update: int, delay: int) -> float:
        return self._first.lr_factor(update, delay)

    @override
    def apply(
        self, weights: Sequence[Tensor], update: Sequence[Tensor], delays: Sequence[int]
    ) -> None:
        for part, *of in self._each(weights, update, delays):
            part.apply(*of)

    @override
    def ahead(self, weights: Sequence[Tensor], update: Sequence[Tensor]) -> Sequence[Tensor]:
        parts = (part.ahead(*of) for part, *of in self._each(weights, update))
        return self._in_order(parts)

    @override
    def state(self) -> list[State]:
        return self._in_order(part.state() for _, part in self._parts)

    @override
    def restore(self, state: Sequence[State]) -> None:
        for part, of in self._each(state):
            part.restore(of)

    def _each(self, *lists: Sequence) -> Iterator[tuple]:
        """Each correction with its part of each list; an empty list has no parts."""
        for numbers, part in self._parts:
            yield part, *([of[i] for i in numbers] if of else [] for of in lists)

    def _in_order(self, parts: Iterator[Sequence]) -> list:
        """What the corrections return for each of their weights, in the order of all weights."""
        found: dict[int, object] = {}
        for (numbers, _), of in zip(self._parts, parts, strict=True):
            found.update(zip(numbers, of, strict=True))
        return [found[i] for i in sorted(found)]
