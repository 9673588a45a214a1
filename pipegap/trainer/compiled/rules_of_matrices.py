"""Rules of hidden matrices: Muon, NorMuon, SOAP."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from pipegap.trainer.compiled.rules import (
    Adam,
    Group,
    Key,
    Numbers,
    Rule,
    Tensors,
    corrected,
    norms,
)
from pipegap.trainer.optimizers.orthogonal import JORDAN

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of the Newton-Schulz iteration (Jordan 2024)."""


def orthogonal(matrices: Tensor, num_steps: int) -> Tensor:
    """Nearly the closest matrices with orthonormal rows or columns, by Newton-Schulz.

    `matrices` are [members, rows, columns]. The library computes in bf16, which is slow on CPUs
    without products in it, and no faster than fp32 for small matrices on the others: this computes
    in fp32.
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    x = x / norms(x).clamp_min(1e-7)
    first, third, fifth = QUINTIC
    for _ in range(num_steps):
        gram = x @ x.mT
        x = first * x + (third * gram + fifth * (gram @ gram)) @ x
    return x.mT if is_tall else x


@dataclass(frozen=True)
class Muon(Rule):
    """Muon of hidden matrices: momentum, orthogonalised."""

    nesterov: bool
    num_steps: int
    is_adjusted: bool
    """Whether 0.2 √max(rows, columns) is the size of an update, and not √max(1, rows / columns)."""
    steps: ClassVar[str] = "pytorch_optimizer.Muon"
    keys: ClassVar[tuple[Key, ...]] = (("momentum_buffer",),)

    @override
    @classmethod
    def of(cls, group: Group) -> Rule | None:
        if not group["use_muon"]:
            return Adam()
        if {*group["ns_coeffs"]} != {JORDAN}:
            return None
        return Muon(group["nesterov"], group["ns_steps"], group["use_adjusted_lr"])

    @override
    def numbers(self, group: Group, step: int) -> dict[str, float]:
        lr, momentum = group["lr"], group["momentum"]
        return {
            "kept": 1 - lr * group["weight_decay"],
            "new": 1 - momentum,
            "old": momentum,
            "lr": lr,
        }

    @override
    def stepped(
        self, weights: Tensor, gradients: Tensor, state: Tensors, numbers: Numbers
    ) -> Tensor:
        update = orthogonal(self.momentum(gradients, state[0], numbers), self.num_steps)
        return weights * numbers["kept"] - numbers["lr"] * self.size(weights) * update

    def momentum(self, gradients: Tensor, mean: Tensor, numbers: Numbers) -> Tensor:
        """What is orthogonalised; changes `mean`, the momentum, in place."""
        mean.copy_(mean + numbers["new"] * (gradients - mean))
        return gradients + numbers["old"] * (mean - gradients) if self.nesterov else mean

    def size(self, weights: Tensor) -> float:
        """What an orthogonal update is multiplied by, of matrices [members, rows, columns]."""
        rows, columns = weights.shape[-2:]
        if self.is_adjusted:
            return 0.2 * math.sqrt(max(rows, columns))
        return math.sqrt(max(1.0, rows / columns))


@dataclass(frozen=True)
class NorMuon(Muon):
    """NorMuon of hidden matrices: Muon's update with rows of equal size."""

    keeps_norm: bool
    """Whether the update keeps the norm that it had, and does not get a root mean square of 0.2."""
    steps: ClassVar[str] = "pytorch_optimizer.NorMuon"
    keys: ClassVar[tuple[Key, ...]] = ("momentum_buffer",), ("second_momentum_buffer",)

    @override
    @classmethod
    def of(cls, group: Group) -> Rule:
        if not group["use_muon"]:
            return Adam()
        fields = group["nesterov"], group["ns_steps"], group["use_adjusted_lr"]
        return NorMuon(*fields, keeps_norm=group["update_scale"] == "preserve_norm")

    @override
    def numbers(self, group: Group, step: int) -> dict[str, float]:
        own_numbers = {"new square": 1 - group["beta2"], "eps": group["eps"]}
        return {**super().numbers(group, step), **own_numbers}

    @override
    def stepped(
        self, weights: Tensor, gradients: Tensor, state: Tensors, numbers: Numbers
    ) -> Tensor:
        update = orthogonal(self.momentum(gradients, state[0], numbers), self.num_steps)
        rows = state[1]
        squares = (update * update).mean(-1, keepdim=True)
        rows.copy_(rows + numbers["new square"] * (squares - rows))
        even = update / (rows.sqrt() + numbers["eps"])
        entries = weights.shape[-2] * weights.shape[-1]
        target_norms = norms(update) if self.keeps_norm else 0.2 * math.sqrt(entries)
        size = self.size(weights) if self.keeps_norm else 1.0
        decayed = weights * numbers["kept"]
        return (
            decayed - numbers["lr"] * size * (target_norms / (norms(even) + numbers["eps"])) * even
        )


@dataclass(frozen=True)
class Soap(Rule):
    """SOAP of hidden matrices: Adam in the eigenbases of averaged g gᵀ and gᵀ g."""

    steps: ClassVar[str] = "pytorch_optimizer.SOAP"
    keys: ClassVar[tuple[Key, ...]] = (
        ("exp_avg",),
        ("exp_avg_sq",),
        ("GG", 0),
        ("GG", 1),
        ("Q", 0),
        ("Q", 1),
    )

    @override
    def numbers(self, group: Group, step: int) -> dict[str, float]:
        first, second = group["betas"]
        done = step - 1  # the first step of the library only looks
        root = math.sqrt(corrected(second, done))
        share = second if group["shampoo_beta"] is None else group["shampoo_beta"]
        return {
            "kept": 1 - group["lr"] * group["weight_decay"],
            "new": 1 - first,
            "new square": 1 - second,
            "share": 1 - share,
            "eps": group["eps"],
            "size": group["lr"] * root / corrected(first, done),
        }

    @override
    def stepped(
        self, weights: Tensor, gradients: Tensor, state: Tensors, numbers: Numbers
    ) -> Tensor:
        mean, square, of_rows, of_columns, rows, columns = state
        share = numbers["share"]
        turned = rows.mT @ gradients @ columns
        mean.copy_(mean + numbers["new"] * (gradients - mean))
        square.copy_(square + numbers["new square"] * (turned * turned - square))
        update = (rows.mT @ mean @ columns) / (square.sqrt() + numbers["eps"])
        of_rows.copy_(of_rows + share * (gradients @ gradients.mT - of_rows))
        of_columns.copy_(of_columns + share * (gradients.mT @ gradients - of_columns))
        step = numbers["size"] * (rows @ update @ columns.mT)
        return (weights - step) * numbers["kept"]

    @override
    def renew(self, group: Group, step: int, state: Tensors) -> None:
        """One power iteration of both bases, every `precondition_frequency` steps."""
        if (step - 1) % group["precondition_frequency"]:
            return
        _, square, *averages, rows, columns = state
        for side, (average, basis) in enumerate(zip(averages, (rows, columns), strict=True)):
            product = average @ basis
            order = (basis * product).sum(-2).argsort(-1, descending=True)
            columns_in_order = order.unsqueeze(-2).expand_as(product)
            basis.copy_(torch.linalg.qr(product.gather(-1, columns_in_order)).Q)
            along = side - 2  # entries of the second moment belong to a pair of basis vectors
            index = order.unsqueeze(-1 if along == -2 else -2).expand_as(square)
            square.copy_(square.gather(along, index))
