"""Rules that step every entry by itself, but for a norm: Adam, Lion, Adan, MARS."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from trainer.compiled.rules import Group, Key, Rule, corrected, norms


@dataclass(frozen=True)
class Adam(Rule):
    """AdamW, of torch or beside another optimizer of the library."""

    keys: ClassVar[tuple[Key, ...]] = ("exp_avg",), ("exp_avg_sq",)

    @override
    def numbers(self, group: Group, step: int) -> list[float]:
        first, second = group["betas"]
        return [
            1 - group["lr"] * group["weight_decay"],
            *(1 - first, second, 1 - second),
            *(math.sqrt(corrected(second, step)), group["eps"]),
            group["lr"] / corrected(first, step),
        ]

    @override
    def stepped(
        self,
        weights: Tensor,
        gradients: Tensor,
        state: Sequence[Tensor],
        numbers: Sequence[Tensor],
    ) -> Tensor:
        mean, square = state[:2]
        kept, new, old_square, new_square, root, eps, size = numbers
        mean.copy_(mean + new * (gradients - mean))
        square.copy_(old_square * square + new_square * gradients * gradients)
        return weights * kept - size * mean / (square.sqrt() / root + eps)


@dataclass(frozen=True)
class TorchAdam(Adam):
    """torch's AdamW, which counts the steps of each weight in a tensor."""

    keys: ClassVar[tuple[Key, ...]] = ("exp_avg",), ("exp_avg_sq",), ("step",)

    @override
    def stepped(
        self,
        weights: Tensor,
        gradients: Tensor,
        state: Sequence[Tensor],
        numbers: Sequence[Tensor],
    ) -> Tensor:
        state[2].copy_(state[2] + 1)
        return super().stepped(weights, gradients, state, numbers)

    @override
    def done(self, group: Group, state: Sequence[Tensor]) -> int:
        return int(state[2][0])


@dataclass(frozen=True)
class Lion(Rule):
    """Lion: the sign of an interpolation."""

    keys: ClassVar[tuple[Key, ...]] = (("exp_avg",),)

    @override
    def numbers(self, group: Group, step: int) -> list[float]:
        between, momentum = group["betas"]
        return [1 - group["lr"] * group["weight_decay"], 1 - between, 1 - momentum, group["lr"]]

    @override
    def stepped(
        self,
        weights: Tensor,
        gradients: Tensor,
        state: Sequence[Tensor],
        numbers: Sequence[Tensor],
    ) -> Tensor:
        (mean,) = state
        kept, between, new, lr = numbers
        change = gradients - mean
        signs = (mean + between * change).sign()
        mean.copy_(mean + new * change)
        return weights * kept - lr * signs


@dataclass(frozen=True)
class Adan(Rule):
    """Adan, whose decay comes after its step."""

    keys: ClassVar[tuple[Key, ...]] = (
        ("exp_avg",),
        ("exp_avg_diff",),
        ("exp_avg_sq",),
        ("previous_grad",),
    )

    @override
    def numbers(self, group: Group, step: int) -> list[float]:
        first, second, third = group["betas"]
        lr = group["lr"]
        return [
            *(1 - first, 1 - second, second, third, 1 - third),
            *(math.sqrt(corrected(third, step)), group["eps"]),
            *(lr / corrected(first, step), lr * second / corrected(second, step)),
            1 + lr * group["weight_decay"],
        ]

    @override
    def stepped(
        self,
        weights: Tensor,
        gradients: Tensor,
        state: Sequence[Tensor],
        numbers: Sequence[Tensor],
    ) -> Tensor:
        mean, changes, square, negative = state
        new, newer, share, old_square, new_square, root, eps, size, size_of_changes, decay = numbers
        change = negative + gradients  # the library keeps the last gradient with a minus
        mean.copy_(mean + new * (gradients - mean))
        changes.copy_(changes + newer * (change - changes))
        ahead = gradients + share * change
        square.copy_(old_square * square + new_square * ahead * ahead)
        negative.copy_(-gradients)
        root_of_square = square.sqrt() / root + eps
        step = size * mean / root_of_square + size_of_changes * changes / root_of_square
        return (weights - step) / decay


@dataclass(frozen=True)
class Mars(Rule):
    """MARS-AdamW for matrices: Adam of a gradient that is corrected by its last change."""

    keys: ClassVar[tuple[Key, ...]] = ("exp_avg",), ("exp_avg_sq",), ("last_grad",)

    @override
    def numbers(self, group: Group, step: int) -> list[float]:
        first, second = group["betas"]
        return [
            1 - group["lr"] * group["weight_decay"],
            group["gamma"] * first / (1 - first),
            *(1 - first, second, 1 - second),
            *(math.sqrt(corrected(second, step)), group["eps"]),
            group["lr"] / corrected(first, step),
        ]

    @override
    def stepped(
        self,
        weights: Tensor,
        gradients: Tensor,
        state: Sequence[Tensor],
        numbers: Sequence[Tensor],
    ) -> Tensor:
        kept, share, new, old_square, new_square, root, eps, size = numbers
        mean, square, last = state
        ahead = gradients + share * (gradients - last)
        ahead = ahead / norms(ahead).clamp_min(1)
        mean.copy_(mean + new * (ahead - mean))
        square.copy_(old_square * square + new_square * ahead * ahead)
        last.copy_(gradients)
        return weights * kept - size * mean / (((square + 1e-15).sqrt() + eps) / root)


@dataclass(frozen=True)
class MarsVector(Mars):
    """What MARS does with vectors: AdamW with options of its own."""

    @override
    def numbers(self, group: Group, step: int) -> list[float]:
        lr = group["lr"] * group["lr_1d_factor"]
        first, second = group["betas_1d"]
        return [
            1 - lr * group["weight_decay_1d"],
            *(1 - first, second, 1 - second),
            *(math.sqrt(corrected(second, step)), group["eps"]),
            lr / corrected(first, step),
        ]

    @override
    def stepped(
        self,
        weights: Tensor,
        gradients: Tensor,
        state: Sequence[Tensor],
        numbers: Sequence[Tensor],
    ) -> Tensor:
        kept, new, old_square, new_square, root, eps, size = numbers
        mean, square, last = state
        mean.copy_(mean + new * (gradients - mean))
        square.copy_(old_square * square + new_square * gradients * gradients)
        last.copy_(gradients)
        return weights * kept - size * mean / (((square + 1e-15).sqrt() + eps) / root)
