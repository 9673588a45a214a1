"""Preconditioners that are Kronecker products: Shampoo, SOAP, PSGD."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch
from torch.optim import Optimizer

from trainer.base.ranges import Count, Positive
from trainer.optimizers.chained import Chained, beside_adamw
from trainer.optimizers.dropped import drops, one_matrix
from trainer.optimizers.routing import Decay, Group, holds


@holds(1, squares=2)
@drops(8, one_matrix)
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


@holds(2, squares=2)
@drops(8, one_matrix)
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


@holds(1, squares=1)
@drops(16, one_matrix)
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

    kron = Kron(groups, lr=lr, momentum=momentum, precondition_dtype=None)
    return Chained([kron], within=drawing_its_own)


def drawing_its_own(groups: Sequence[Group]) -> AbstractContextManager[None]:
    """Makes the random draws of a step a function of the trial's seed and the step alone.

    So a checkpoint holds no generator, and a stage draws the same numbers in another process.
    """
    devices = {p.device for group in groups for p in group["params"]}
    return own_stream(torch.initial_seed(), groups[0].get("step", 0), devices)


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
