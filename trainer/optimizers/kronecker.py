"""Preconditioners that are Kronecker products: Shampoo, SOAP, PSGD."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch.optim import Optimizer
from typing_extensions import override

from trainer.base.ranges import Count, Positive
from trainer.optimizers.routing import Decay, Group, keeps
from trainer.optimizers.together import Together, beside_adamw


@keeps(1, squares=2, in_step=0)
@beside_adamw
def shampoo(
    groups: list[Group],
    *,
    lr: Positive,
    precondition_every: Count,
    matrix_eps: Positive,
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
def kron(
    groups: list[Group],
    *,
    lr: Positive,
    momentum: Decay,
) -> Optimizer:
    """PSGD-Kron (arXiv 1512.04202, 2402.04553) for hidden matrices, AdamW for the rest.

    pytorch_optimizer's: triangular factors fitted to a whitening criterion with random vectors.
    """
    from pytorch_optimizer import Kron

    return DrawsItsOwn([Kron(groups, lr=lr, momentum=momentum, precondition_dtype=None)])


class DrawsItsOwn(Together):
    """Makes the random draws of a step a function of the trial's seed and the step alone.

    So a checkpoint holds no generator, and a stage draws the same numbers in another process.
    """

    @override
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        devices = {p.device for group in self.param_groups for p in group["params"]}
        with own_stream(torch.initial_seed(), self.param_groups[0].get("step", 0), devices):
            super().step()


@contextmanager
def own_stream(seed: int, step: int, devices: set[torch.device]) -> Iterator[None]:
    """A context in which the global generators of torch and numpy start from (seed, step).

    Afterwards they have the state they had before.
    """
    for_torch, for_numpy = np.random.SeedSequence([seed, step]).generate_state(2)
    before = np.random.get_state()
    gpus = [device.index for device in devices if device.type == "cuda"]
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(int(for_torch))
        np.random.seed(int(for_numpy))
        try:
            yield
        finally:
            np.random.set_state(before)
