"""Preconditioners that are Kronecker products: Shampoo, SOAP, PSGD, basis rotation, KL-SOAP."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from pipegap.trainer.base.ranges import Count, Positive
from pipegap.trainer.optimizers.routing import (
    Chained,
    Decay,
    Group,
    MatrixOptimizer,
    beside_adamw,
    eigenbases,
    keeps,
    multiplies,
)


@keeps(1, squares=2, in_step=0)
@multiplies(eigenbases)
@beside_adamw
def shampoo(
    groups: list[Group], *, lr: Positive, precondition_every: Count, matrix_eps: Positive
) -> Optimizer:
    """Shampoo (arXiv 1802.09568, Algorithm 1) for hidden matrices, AdamW for the rest.

    pytorch_optimizer's: L^(−1/4) G R^(−1/4), where L and R sum G Gᵀ and Gᵀ G over all updates.
    """
    from pytorch_optimizer import Shampoo

    return Shampoo(
        groups,
        lr=lr,
        weight_decouple=True,
        preconditioning_compute_steps=precondition_every,
        matrix_eps=matrix_eps,
    )


@keeps(2, squares=2, in_step=0)
@multiplies(eigenbases)
@beside_adamw
def soap(
    groups: list[Group],
    *,
    lr: Positive,
    momentum: Decay,
    precondition_every: Count,
    variance_decay: Decay,
    eps: Positive,
) -> Optimizer:
    """SOAP (arXiv 2409.11321) for hidden matrices, AdamW for the rest.

    pytorch_optimizer's: Adam in the eigenbasis of Shampoo's averaged L and R.
    """
    from pytorch_optimizer import SOAP

    return SOAP(
        groups,
        lr=lr,
        betas=(momentum, variance_decay),
        eps=eps,
        precondition_frequency=precondition_every,
    )


@keeps(1, squares=1, in_step=0)
@beside_adamw
def kron(groups: list[Group], *, lr: Positive, momentum: Decay) -> Optimizer:
    """PSGD-Kron (arXiv 1512.04202, 2402.04553) for hidden matrices, AdamW for the rest.

    pytorch_optimizer's: triangular factors fitted to a whitening criterion with random vectors.
    """
    from pytorch_optimizer import Kron

    kron = Kron(groups, lr=lr, momentum=momentum, precondition_dtype=None)
    return Chained([kron], within=drawing_its_own)


def drawing_its_own(groups: Sequence[Group]) -> AbstractContextManager[None]:
    """Makes the random draws of a step a function of the trial's seed and the step alone.

    So a checkpoint needs no generator, and a stage draws the same numbers in every process.
    """
    devices = {p.device for group in groups for p in group["params"]}
    return own_stream(torch.initial_seed(), groups[0].get("step", 0), devices)


@contextmanager
def own_stream(seed: int, step: int, devices: set[torch.device]) -> Iterator[None]:
    """A context in which the global generators of torch and numpy start from (seed, step).

    Afterwards they have the state they had before.
    """
    # numpy too: the library's Kron decides by it when to balance its factors.
    for_torch, for_numpy = np.random.SeedSequence([seed, step]).generate_state(2)
    numpy_state = np.random.get_state()
    gpus = [device.index for device in devices if device.type == "cuda"]
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(int(for_torch))
        np.random.seed(int(for_numpy))
        try:
            yield
        finally:
            np.random.set_state(numpy_state)


def adam_update(
    rotated: Tensor,  # [matrices, rows, columns]
    momentum: Tensor,  # like the gradient, changed in place
    variance: Tensor,  # like the gradient, changed in place
    step: int,
    decay: float,
    variance_decay: float,
    eps: float,
) -> Tensor:
    """Returns Adam's update of a rotated gradient; `step` is the update's number, from 1."""
    momentum.lerp_(rotated, 1 - decay)
    variance.mul_(variance_decay).addcmul_(rotated, rotated, value=1 - variance_decay)
    root = (variance / (1 - variance_decay**step)).sqrt_().add_(eps)
    return momentum / (1 - decay**step) / root


def turned(
    basis: Tensor,  # [matrices, n, n], whose columns are the vectors; becomes the new basis
    average: Tensor,  # [matrices, n, n], symmetric
    momentum: Tensor,  # [matrices, n, …], with rows in `basis`
) -> Tensor:
    """Returns the momentum with its rows in the eigenbasis of `average`, of the same shape."""
    new = torch.linalg.eigh(average).eigenvectors
    rotated = new.mT @ (basis @ momentum)  # out of the old basis, into the new one
    basis.copy_(new)
    return rotated


class BasisRotation(MatrixOptimizer):
    """Adam of UᵀgV, turned back, for hidden matrices; U and V are renewed every few updates.

    The second moment keeps its entries when the basis is renewed: neighbouring eigenbases differ
    little, and no rotation of it is defined.
    """

    @override
    def start(self, matrix: Tensor) -> dict[str, Tensor]:
        rows, columns = matrix.shape
        of_sides = {"left": rows, "right": columns, "rows": rows, "columns": columns}
        return {
            "step": torch.zeros((), dtype=torch.int64),  # on the CPU, where it is read
            "momentum": torch.zeros_like(matrix),
            "variance": torch.zeros_like(matrix),
            **{key: matrix.new_zeros(width, width) for key, width in of_sides.items()},
        }

    @override
    def update(self, group: Group, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        share = 1 - group["variance_decay"]
        state["left"].lerp_(gradient @ gradient.mT, share)
        state["right"].lerp_(gradient.mT @ gradient, share)
        step = int(state["step"][0])  # matrices of a shape are always stepped together
        rows, columns = state["rows"], state["columns"]
        # At step 0 too: until then the bases are zeros, as the momentum is.
        if step % group["precondition_every"] == 0:
            momentum = turned(rows, state["left"], state["momentum"])
            state["momentum"].copy_(turned(columns, state["right"], momentum.mT).mT)
        state["step"] += 1
        options = {key: group[key] for key in ("decay", "variance_decay", "eps")}
        rotated = rows.mT @ gradient @ columns
        update = adam_update(rotated, state["momentum"], state["variance"], step + 1, **options)
        return rows @ update @ columns.mT


@keeps(2, squares=2, in_step=8.4)
@multiplies(eigenbases)
@beside_adamw
def basis_rotation(
    groups: list[Group],
    *,
    lr: Positive,
    momentum: Decay,
    precondition_every: Count,
    variance_decay: Decay,
    eps: Positive,
) -> Optimizer:
    """Basis rotation for hidden matrices, AdamW for the rest.

    The rotation is the bilateral one, into the exact eigenbases of the second moments.
    """
    return BasisRotation(
        groups,
        lr=lr,
        decay=momentum,
        variance_decay=variance_decay,
        precondition_every=precondition_every,
        eps=eps,
    )


FIRST_VALUE = 0.1
"""All eigenvalues of both factors at the start (`init_factor` of the authors' code)."""
CLAMP = 10, 4000
"""The root of an inverse eigenvalue is at most n, the width of its factor, where n is clamped to
this range."""


def fitted(
    average: Tensor,  # [matrices, n, n], changed in place
    values: Tensor,  # [matrices, n], changed in place
    whitened: Tensor,  # [matrices, n, others]
    rotated: Tensor,  # [matrices, n, others]
    share: float,
) -> None:
    """Moves a factor of the second moment, and its eigenvalues in the basis, towards a gradient.

    The columns of `whitened` are the gradient's, divided by the root of the other factor; those of
    `rotated` are the same in the factor's own basis.
    """
    num_columns = whitened.shape[-1]
    average.lerp_(whitened @ whitened.mT / num_columns, share)
    values.lerp_(rotated.square().mean(-1), share)
    least, most = CLAMP
    # 1 / √value ≤ the width means value ≥ width⁻².
    values.clamp_min_(max(least, min(values.shape[-1], most)) ** -2)


class KlSoap(MatrixOptimizer):
    """Adam, without bias correction, of UᵀgV, turned back; U and V are the bases of two factors.

    L ← β L + (1 − β) g R⁻¹ gᵀ / columns and R ← β R + (1 − β) gᵀ L⁻¹ g / rows: each factor is of
    gradients whitened by the other, of which R⁻¹ = V diag(1 / r) Vᵀ has averaged eigenvalues r.
    Every few updates, one power iteration renews U and V; the second moment keeps its entries.
    """

    @override
    def start(self, matrix: Tensor) -> dict[str, Tensor]:
        """The factors of the first gradient, and their eigenvectors by falling eigenvalue."""
        assert matrix.grad is not None
        rows, columns = matrix.shape
        share = 1 - self.defaults["variance_decay"]
        left_gram = matrix.grad @ matrix.grad.T * (share / columns)
        right_gram = matrix.grad.T @ matrix.grad * (share / rows)
        return {
            "step": torch.zeros((), dtype=torch.int64),  # on the CPU, where it is read
            "momentum": torch.zeros_like(matrix),  # in the bases
            "variance": torch.zeros_like(matrix),
            "left": left_gram,
            "right": right_gram,
            # `eigh` sorts by rising eigenvalues.
            "rows": torch.linalg.eigh(left_gram).eigenvectors.flip(-1),
            "columns": torch.linalg.eigh(right_gram).eigenvectors.flip(-1),
            "row_values": matrix.new_full((rows,), FIRST_VALUE),
            "column_values": matrix.new_full((columns,), FIRST_VALUE),
        }

    @override
    def _step(self, group: Group, weights: list[Tensor]) -> None:
        """The first call starts the state and changes no weight."""
        fresh = [weight for weight in weights if not self.state[weight]]
        for weight in fresh:
            self.state[weight].update(self.start(weight))
        if not fresh:  # matrices of a shape are always stepped together
            super()._step(group, weights)

    @override
    def update(self, group: Group, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        rows, columns, decay = state["rows"], state["columns"], group["variance_decay"]
        rotated = rows.mT @ gradient @ columns
        momentum = state["momentum"].lerp_(rotated, 1 - group["decay"])
        variance = state["variance"].mul_(decay).addcmul_(rotated, rotated, value=1 - decay)
        update = rows @ (momentum / (variance.sqrt() + group["eps"])) @ columns.mT
        self._fit(gradient, rotated, state, 1 - decay)
        state["step"] += 1
        if int(state["step"][0]) % group["precondition_every"] == 0:
            self._renew(state)
        return update * (1 - group["lr"] * group["weight_decay"])  # it decays what it has stepped

    def _fit(
        self, gradient: Tensor, rotated: Tensor, state: dict[str, Tensor], share: float
    ) -> None:
        by_rows = state["row_values"].rsqrt().unsqueeze(-1)  # [matrices, rows, 1]
        by_columns = state["column_values"].rsqrt().unsqueeze(-2)  # [matrices, 1, columns]
        # Both before either is fitted: each factor is whitened by the other's old eigenvalues.
        for_left = gradient @ state["columns"] * by_columns
        for_right = (state["rows"].mT @ gradient * by_rows).mT
        fitted(state["left"], state["row_values"], for_left, rotated * by_columns, share)
        fitted(state["right"], state["column_values"], for_right, (rotated * by_rows).mT, share)

    def _renew(self, state: dict[str, Tensor]) -> None:
        """Takes both bases one power iteration further, and the momentum with them."""
        rows = torch.linalg.qr(state["left"] @ state["rows"]).Q
        columns = torch.linalg.qr(state["right"] @ state["columns"]).Q
        # The momentum lies in the old bases: out of them, then into the new ones.
        momentum = state["rows"] @ state["momentum"] @ state["columns"].mT
        state["momentum"].copy_(rows.mT @ momentum @ columns)
        state["rows"].copy_(rows)
        state["columns"].copy_(columns)


@keeps(2, squares=2, in_step=11)
@multiplies(eigenbases)
@beside_adamw
def kl_soap(
    groups: list[Group],
    *,
    lr: Positive,
    momentum: Decay,
    precondition_every: Count,
    variance_decay: Decay,
    eps: Positive,
) -> Optimizer:
    """KL-SOAP for hidden matrices, AdamW for the rest."""
    return KlSoap(
        groups,
        lr=lr,
        decay=momentum,
        variance_decay=variance_decay,
        precondition_every=precondition_every,
        eps=eps,
    )
