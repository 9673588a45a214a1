"""PSGD-Kron (arXiv 1512.04202, 2402.04553): triangular factors fitted to whiten the gradient."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.linalg import solve_triangular
from torch.optim import Optimizer
from typing_extensions import override

from trainer.optimizers.batched import Batched
from trainer.optimizers.routing import Decay, Group, NonNegative, Parameters, Positive
from trainer.optimizers.together import auxiliary, beside_adamw

FIT_RATE, MAX_RMS, BALANCE_EVERY = 0.1, 1.1, 100


def fit(gradient: Tensor, noise: Tensor, left: Tensor, right: Tensor) -> None:
    """One step, in place, of the upper triangular factors towards whitening `gradient`.

    L ← L − rate · triu(A Aᵀ − B Bᵀ) L / ‖A Aᵀ + B Bᵀ‖ with A = L G Rᵀ and B = L⁻ᵀ V R⁻¹ for the
    noise V, and R likewise with Aᵀ A and Bᵀ B. All are [matrices, …, …].
    """
    a = left @ gradient @ right.mT
    b = solve_triangular(left.mT, noise, upper=False)
    b = solve_triangular(right, b, upper=True, left=False)
    for factor, x, y in ((left, a @ a.mT, b @ b.mT), (right, a.mT @ a, b.mT @ b)):
        size = _lower_bound(x + y)
        factor.sub_(FIT_RATE * (x - y).triu() @ factor / size)


def _lower_bound(matrix: Tensor) -> Tensor:
    """Below the spectral norm of symmetric matrices: two power steps from their largest row."""
    tiny = torch.finfo(matrix.dtype).tiny
    largest = matrix.square().sum(-1).argmax(-1)
    vector = matrix[torch.arange(len(matrix), device=matrix.device), largest].unsqueeze(-1)
    for _ in range(2):
        vector = matrix @ (vector / vector.norm(dim=-2, keepdim=True).clamp_min(tiny))
    return vector.norm(dim=-2, keepdim=True).clamp_min(tiny)


def precondition(gradient: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """LᵀL G RᵀR, with a root mean square of at most 1.1."""
    update = left.mT @ (left @ gradient @ right.mT) @ right
    rms = update.square().mean((-2, -1), keepdim=True).sqrt()
    return update * (MAX_RMS / (rms + 1e-6)).clamp_max(1)


def noise_like(gradient: Tensor, step: int) -> Tensor:
    """Standard normal, a function of the trial's seed, the step and the shape of the matrices.

    So a checkpoint holds no generator, and a stage draws the same in a process of its own.
    """
    seeds = np.random.SeedSequence([torch.initial_seed(), step, *gradient.shape[1:]])
    generator = torch.Generator(gradient.device).manual_seed(int(seeds.generate_state(1)[0]))
    noise = torch.empty_like(gradient)
    for matrix in noise:  # one by one: the first few do not depend on how many there are
        matrix.normal_(generator=generator)
    return noise


class Kron(Batched):
    """PSGD-Kron of hidden matrices; `fits` and `waited` count updates, in the group."""

    @override
    def start(self, matrix: Tensor) -> dict[str, Tensor]:
        rows, columns = (
            torch.eye(n, dtype=matrix.dtype, device=matrix.device) for n in matrix.shape
        )
        return {"momentum": torch.zeros_like(matrix), "left": rows, "right": columns}

    @override
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            often = min(1.0, max(0.03, math.exp(0.001 * (500 - group["step"]))))
            group["waited"] += 1
            group["fits"] = group["waited"] >= 1 / often
            group["waited"] *= not group["fits"]
            group["step"] += 1
        super().step()

    @override
    def update(self, group: Group, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        momentum, left, right = state["momentum"], state["left"], state["right"]
        momentum.lerp_(gradient, 1 - group["decay"])
        mean = momentum / (1 - group["decay"] ** group["step"])
        if group["fits"]:
            fit(mean, noise_like(gradient, group["step"]), left, right)
        if group["step"] % BALANCE_EVERY == 0:
            _balance(left, right)
        return precondition(mean, left, right)


def _balance(left: Tensor, right: Tensor) -> None:
    """Makes the largest entries alike, in place; L ⊗ R is the same before and after."""
    ratio = (left.abs().amax((-2, -1), True) / right.abs().amax((-2, -1), True)).sqrt()
    left.div_(ratio)
    right.mul_(ratio)


def kron(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    auxiliary_lr: Positive | None,
    auxiliary_momentum: Decay,
    variance_decay: Decay,
    eps: Positive,
    weight_decay: NonNegative,
) -> Optimizer:
    """PSGD-Kron for hidden matrices, AdamW for the rest."""
    return beside_adamw(
        parameters,
        lambda groups: Kron(groups, lr=lr, decay=momentum, step=0, waited=0, fits=False),
        auxiliary(lr, auxiliary_lr, auxiliary_momentum, variance_decay, eps),
        weight_decay,
    )
