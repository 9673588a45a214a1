"""Hyperball: hidden matrices keep their norm, and so do their updates (arXiv 2606.16899).

W' = W − lr R u / ‖u‖ and W ← R W' / ‖W'‖, where u is the update of another optimizer without decay,
‖·‖ the Frobenius norm and R = ‖W‖.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor
from torch.optim import Optimizer

from pipegap.trainer.base.ranges import Count, Positive
from pipegap.trainer.optimizers.orthogonal import Orthogonal, Orthogonalisation, norms
from pipegap.trainer.optimizers.routing import (
    Decay,
    Group,
    beside_adamw,
    keeps,
    moved_by,
    multiplies,
    newton_schulz,
)

SMALLEST = 1e-10
"""The smallest norm that a division takes. A matrix of zeros stays zero."""
ON_SPHERE = "on_sphere"
"""Option of a group whose matrices have a constant norm."""


def on_sphere(optimizer: Optimizer) -> Optimizer:
    """Steps matrices on their spheres, by the updates of an optimizer without its decay.

    R is the norm before each update, as in the authors' code: up to rounding, the initial norm.
    """
    return moved_by(optimizer, _step_on_sphere, **{ON_SPHERE: True})


def _step_on_sphere(group: Group, weights: list[Tensor], updates: list[Tensor]) -> None:
    for weight, update in zip(weights, updates, strict=True):
        radius = norms(weight)  # [1, 1]
        weight.sub_(update * (group["lr"] * radius / norms(update).clamp_min(SMALLEST)))
        _rescale(weight, radius)


@contextmanager
def on_spheres(optimizers: Iterable[Optimizer]) -> Iterator[None]:
    """A context after which the matrices of constant norm have the norm that they had before it.

    In it a correction may move them. Its term is a difference of two updates, both nearly along the
    sphere: the change of the norm that is undone here is of second order in the learning rate.
    """
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    weights_of_groups = [group["params"] for group in groups if group.get(ON_SPHERE)]
    # Each matrix once: the optimizers may share weights.
    matrices = list(dict.fromkeys(chain.from_iterable(weights_of_groups)))
    radii = [norms(matrix) for matrix in matrices]
    yield
    for matrix, radius in zip(matrices, radii, strict=True):
        _rescale(matrix, radius)


def _rescale(matrix: Tensor, norm: Tensor) -> None:
    matrix.mul_(norm / norms(matrix).clamp_min(SMALLEST))


@keeps(1, in_step=4.7)
@multiplies(newton_schulz)
@beside_adamw
def muonh(
    groups: list[Group],
    *,
    lr: Positive,
    momentum: Decay,
    nesterov: bool,
    orthogonalisation: Orthogonalisation,
    newton_schulz_steps: Count,
) -> Optimizer:
    """MuonH (arXiv 2606.16899): Muon's directions for hidden matrices of constant norm.

    It follows marin (lib/levanter/src/levanter/optim/muonh.py at 05422e2). AdamW steps the rest,
    the head too, whose norm is constant in marin and not in modded-nanogpt.
    """
    matrices = Orthogonal(
        groups,
        lr=lr,
        decay=momentum,
        nesterov=nesterov,
        orthogonalisation=orthogonalisation,
        steps=newton_schulz_steps,
    )
    return on_sphere(matrices)


@keeps(in_step=2)
@beside_adamw
def adamh(
    groups: list[Group], *, lr: Positive, momentum: Decay, variance_decay: Decay, eps: Positive
) -> Optimizer:
    """AdamH (arXiv 2606.16899): Adam's directions for hidden matrices of constant norm.

    It follows marin (lib/levanter/src/levanter/optim/adamh.py at 0084342). AdamW steps the rest,
    the head too.
    """
    betas = momentum, variance_decay
    return on_sphere(torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps))


@keeps(1, in_step=4.9)
@multiplies(newton_schulz)
@beside_adamw
def normuonh(
    groups: list[Group],
    *,
    lr: Positive,
    momentum: Decay,
    nesterov: bool,
    orthogonalisation: Orthogonalisation,
    newton_schulz_steps: Count,
    variance_decay: Decay,
) -> Optimizer:
    """NorMuonH: NorMuon's directions for hidden matrices of constant norm, AdamW for the rest.

    It follows modded-nanogpt (records/track_3_optimization/results/20260430_normuonh at f411b3d),
    which evens out rows, or the columns of a wide matrix.
    """
    matrices = Orthogonal(
        groups,
        lr=lr,
        decay=momentum,
        nesterov=nesterov,
        orthogonalisation=orthogonalisation,
        steps=newton_schulz_steps,
        variance_decay=variance_decay,
    )
    return on_sphere(matrices)
