"""Orthogonalised momentum: Muon, NorMuon, AdaMuon, Muown, Scion; AdamW for the other weights."""

from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from pipegap.trainer.base.ranges import Count, NonNegative, Positive
from pipegap.trainer.optimizers.kronecker import adam_update
from pipegap.trainer.optimizers.orthogonal import Orthogonalisation, orthogonalised, polynomials
from pipegap.trainer.optimizers.routing import (
    Chained,
    Decay,
    Group,
    MatrixOptimizer,
    Parameters,
    auxiliary,
    beside_adamw,
    decay_cautiously,
    grouped,
    keeps,
    matrices_and_rest,
    moved_by,
    multiplies,
    newton_schulz,
)

SPECTRAL, SIGN = 2, 4
"""The library's numbers of Scion's norms; its enumeration would not be plain data in a checkpoint.
"""
CAUTIOUS = "cautious_decay"
"""Option of a group: the decay that is made in place of the library's."""


@keeps(1, in_step=2.4)
@multiplies(newton_schulz, dtype="bfloat16")
def muon(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    nesterov: bool,
    newton_schulz_steps: Count,
    scaling: Literal["original", "match_rms_adamw"],
    auxiliary_lr: Positive | None,
    auxiliary_momentum: Decay,
    variance_decay: Decay,
    eps: Positive,
    weight_decay: NonNegative,
    orthogonalisation: Orthogonalisation = "newton_schulz",
    cautious_decay: bool = False,
) -> Optimizer:
    """Muon for hidden matrices, AdamW for the rest (Jordan 2024; arXiv 2502.16982).

    pytorch_optimizer's, which orthogonalises all matrices of a shape in one batch, in bf16.
    `match_rms_adamw` scales by 0.2 sqrt(max(rows, columns)), so that one lr fits both halves. A
    cautious decay (arXiv 2510.12402) is that of hidden matrices alone, as in nanochat.
    """
    from pytorch_optimizer import Muon  # imported late: it costs a second

    adamw = auxiliary(lr, auxiliary_lr, auxiliary_momentum, variance_decay, eps)
    make = partial(
        Muon,
        lr=lr,
        momentum=momentum,
        nesterov=nesterov,
        ns_steps=newton_schulz_steps,
        ns_coeffs=list(polynomials(orthogonalisation, newton_schulz_steps)),
        use_adjusted_lr=scaling == "match_rms_adamw",
    )
    # The library decays before it knows the update, on which a cautious decay depends.
    if cautious_decay:

        def cautious(groups: list[Group]) -> Optimizer:
            muon = make([{"use_muon": True, CAUTIOUS: g["weight_decay"], **g} for g in groups])
            return moved_by(muon, _decaying_cautiously)

        return matrices_and_rest(parameters, cautious, adamw, weight_decay)
    return make(_halves(parameters, adamw, weight_decay))


def _decaying_cautiously(group: Group, weights: list[Tensor], updates: list[Tensor]) -> None:
    decay_cautiously(weights, updates, group["lr"] * group[CAUTIOUS])
    torch._foreach_sub_(weights, updates)


@keeps(1, in_step=1.6)
@multiplies(newton_schulz, dtype="bfloat16")
def normuon(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    nesterov: bool,
    newton_schulz_steps: Count,
    scaling: Literal["preserve_norm", "match_rms"],
    auxiliary_lr: Positive | None,
    auxiliary_momentum: Decay,
    variance_decay: Decay,
    eps: Positive,
    weight_decay: NonNegative,
) -> Optimizer:
    """NorMuon (arXiv 2510.05491): Muon's update with rows of equal size; AdamW for the rest.

    pytorch_optimizer's, which updates all matrices of one shape in one batch. `match_rms` scales an
    update to a root mean square of 0.2, as the paper does. `preserve_norm` restores its norm and
    multiplies it by sqrt(max(1, rows / columns)), as the authors' code does.
    """
    from pytorch_optimizer import NorMuon

    adamw = auxiliary(lr, auxiliary_lr, auxiliary_momentum, variance_decay, eps)
    return NorMuon(
        _halves(parameters, adamw, weight_decay),
        lr=lr,
        momentum=momentum,
        beta2=variance_decay,
        nesterov=nesterov,
        ns_steps=newton_schulz_steps,
        update_scale=scaling,
        eps=eps,
    )


def _halves(parameters: Parameters, adamw: Group, weight_decay: float) -> list[Group]:
    """Parameter groups: the hidden matrices for Muon, the rest for AdamW, told by `use_muon`."""
    adamw_group = {"use_muon": False, **adamw}
    return grouped(
        parameters,
        matrix={"use_muon": True, "weight_decay": weight_decay},
        embedding={**adamw_group, "weight_decay": weight_decay},
        vector={**adamw_group, "weight_decay": 0.0},
    )


def adamuon_update(
    gradient: Tensor,  # [matrices, rows, columns]
    momentum: Tensor,  # like the gradient, changed in place
    variance: Tensor,  # like the gradient, changed in place
    decay: float,
    variance_decay: float,
    nesterov: bool,
    steps: int,
    eps: float,
) -> Tensor:
    """Returns the update, of the gradient's shape, with a root mean square of 0.2 per matrix.

    M ← decay M + G and V ← variance_decay V + (1 − variance_decay) O², in place, where O is sign(M)
    (or of G + decay M: Nesterov) orthogonalised by Newton-Schulz. The update is O / (√V + eps),
    scaled.
    """
    from pytorch_optimizer.optimizer.utils import matrix

    momentum.mul_(decay).add_(gradient)
    direction = gradient.add(momentum, alpha=decay) if nesterov else momentum
    # The library iterates in bf16.
    orthogonal = matrix.zero_power_via_newton_schulz_5(direction.sign(), steps).to(gradient.dtype)
    variance.mul_(variance_decay).addcmul_(orthogonal, orthogonal, value=1 - variance_decay)
    update = orthogonal / (variance.sqrt() + eps)
    rms = update.square().mean((-2, -1), keepdim=True).sqrt()
    return update * (0.2 / (rms + eps))


class AdaMuon(MatrixOptimizer):
    """Applies `adamuon_update` to hidden matrices."""

    @override
    def start(self, matrix: Tensor) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(matrix), "variance": torch.zeros_like(matrix)}

    @override
    def update(self, group: Group, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        keys = ("decay", "variance_decay", "nesterov", "steps", "eps")
        options = {key: group[key] for key in keys}
        return adamuon_update(gradient, state["momentum"], state["variance"], **options)


@keeps(in_step=4.5)
@multiplies(newton_schulz, dtype="bfloat16")
@beside_adamw
def adamuon(
    groups: list[Group],
    *,
    lr: Positive,
    momentum: Decay,
    nesterov: bool,
    newton_schulz_steps: Count,
    variance_decay: Decay,
    eps: Positive,
) -> Optimizer:
    """AdaMuon (arXiv 2507.11005) for hidden matrices, AdamW for the rest.

    Muon of the momentum's sign, divided by a second moment.
    """
    return AdaMuon(
        groups,
        lr=lr,
        decay=momentum,
        variance_decay=variance_decay,
        nesterov=nesterov,
        steps=newton_schulz_steps,
        eps=eps,
    )


SMALLEST = 1e-10
"""The smallest length of a row that a division takes; a row of zeros starts with it."""


class Muown(MatrixOptimizer):
    """Muon of the directions of rows, and Adam of their lengths: w = g v / ‖v‖ for each row w.

    v steps by 0.2 √max(rows, columns) times its orthogonalised momentum, and g by Adam, both with
    their gradients at w, whose length is g. ‖v‖ grows, and the angle of a step falls.
    """

    @override
    def start(self, matrix: Tensor) -> dict[str, Tensor]:
        length = matrix.norm(dim=-1, keepdim=True).clamp_min(SMALLEST)
        return {
            "step": torch.zeros((), dtype=torch.int64),  # on the CPU, where it is read
            "momentum": torch.zeros_like(matrix),  # of v
            "length": length,  # ‖v‖
            "gain_momentum": torch.zeros_like(length),
            "gain_variance": torch.zeros_like(length),
        }

    @override
    def seen(self, weights: list[Tensor]) -> dict[str, Tensor]:
        return {"weight": torch.stack(weights)}

    @override
    def update(self, group: Group, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        weight, length, decay = state["weight"], state["length"], group["decay"]
        gain = weight.norm(dim=-1, keepdim=True).clamp_min(SMALLEST)  # g, [matrices, rows, 1]
        unit = weight / gain  # v / ‖v‖
        # The gradients of g and of v, by the chain rule of w = g v / ‖v‖.
        of_gain = (gradient * unit).sum(-1, keepdim=True)
        of_direction = (gradient - unit * of_gain) * (gain / length)
        momentum = state["momentum"].mul_(decay).add_(of_direction)
        momentum_ahead = of_direction + decay * momentum if group["nesterov"] else momentum
        rate = group["lr"] * 0.2 * max(gradient.shape[-2:]) ** 0.5
        step = orthogonalised(momentum_ahead, group["orthogonalisation"], group["steps"])
        direction = unit * length - rate * step  # v of the next update
        state["step"] += 1
        adam = adam_update(
            of_gain,
            state["gain_momentum"],
            state["gain_variance"],
            int(state["step"][0]),  # matrices of a shape are always stepped together
            group["gain_decay"],
            group["variance_decay"],
            group["eps"],
        )
        length.copy_(direction.norm(dim=-1, keepdim=True))
        # The old row less the new one, g v / ‖v‖, of which `length` is already the new ‖v‖.
        return weight - (gain - group["lr"] * adam) * (direction / length)

    @override
    def move(self, group: Group, weights: list[Tensor], update: Tensor) -> None:
        """W ← (1 − lr · weight_decay) W − update, which has its learning rates already."""
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_sub_(weights, list(update.unbind()))


@keeps(1, in_step=6)
@multiplies(newton_schulz)
@beside_adamw
def muown(
    groups: list[Group],
    *,
    lr: Positive,
    momentum: Decay,
    nesterov: bool,
    orthogonalisation: Orthogonalisation,
    newton_schulz_steps: Count,
    auxiliary_momentum: Decay,
    variance_decay: Decay,
    eps: Positive,
) -> Optimizer:
    """Muown (arXiv 2605.10797) for hidden matrices, AdamW for the rest.

    Adam of the lengths has the betas and the eps of AdamW. A gain is computed from its row, so a
    correction may change the row. It is never negative: a gain that passes 0 turns its row around.
    """
    polynomials(orthogonalisation, newton_schulz_steps)  # raises for too many steps
    return Muown(
        groups,
        lr=lr,
        decay=momentum,
        nesterov=nesterov,
        orthogonalisation=orthogonalisation,
        steps=newton_schulz_steps,
        gain_decay=auxiliary_momentum,
        variance_decay=variance_decay,
        eps=eps,
    )


@keeps(1, num_of_others=1, in_step=1.6)
@multiplies(newton_schulz, dtype="bfloat16")
def scion(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    radius: Positive,
    embedding_radius: Positive,
    auxiliary_lr: Positive,
    auxiliary_momentum: Decay,
    variance_decay: Decay,
    eps: Positive,
) -> Optimizer:
    """Scion (arXiv 2502.07529), pytorch_optimizer's, for matrices; AdamW for vectors.

    Each weight moves towards a corner of the norm ball of its kind: W ← (1 − lr) W − lr · radius ·
    corner(M). The corner is √(rows / columns) times M orthogonalised (Newton-Schulz in bf16) for a
    hidden matrix, and sign(M) / columns for embeddings and head. The paper's models have no
    vectors.
    """
    from pytorch_optimizer import SCION

    groups = grouped(
        parameters,
        matrix={"norm_type": SPECTRAL, "scale": radius},
        embedding={"norm_type": SIGN, "scale": embedding_radius},
        vector={},
    )
    vectors = [group for group in groups if "scale" not in group]
    scion_groups = [group for group in groups if "scale" in group]
    adamw = auxiliary(lr, auxiliary_lr, auxiliary_momentum, variance_decay, eps)
    parts: list[Optimizer] = []
    if scion_groups:  # the library calls the share of the new gradient its momentum
        parts.append(SCION(scion_groups, lr=lr, momentum=1 - momentum, constraint=True))
    if vectors:
        parts.append(torch.optim.AdamW(vectors, **adamw, weight_decay=0.0))
    return Chained(parts)
