"""Scion (arXiv 2502.07529): each weight moves towards a corner of the norm ball of its kind."""

from __future__ import annotations

import torch
from torch.optim import Optimizer

from trainer.base.ranges import Positive
from trainer.optimizers.routing import Decay, Parameters, grouped
from trainer.optimizers.together import Together, auxiliary

SPECTRAL, SIGN = 2, 4
"""The library's numbers of the norms; its enumeration would not be plain data in a checkpoint."""


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
    """W ← (1 − lr) W − lr · radius · corner(M), pytorch_optimizer's; AdamW for vectors.

    The corner is √(rows / columns) times M orthogonalised for a hidden matrix (Newton-Schulz in
    bf16), and sign(M) / columns for embeddings and head. The paper's models have no vectors.
    """
    from pytorch_optimizer import SCION

    groups = grouped(
        parameters,
        matrix={"norm_type": SPECTRAL, "scale": radius},
        embedding={"norm_type": SIGN, "scale": embedding_radius},
        vector={},
    )
    vectors = [group for group in groups if "scale" not in group]
    others = [group for group in groups if "scale" in group]
    adamw = auxiliary(lr, auxiliary_lr, auxiliary_momentum, variance_decay, eps)
    parts: list[Optimizer] = []
    if others:  # the library calls the share of the new gradient its momentum
        parts.append(SCION(others, lr=lr, momentum=1 - momentum, constraint=True))
    if vectors:
        parts.append(torch.optim.AdamW(vectors, **adamw, weight_decay=0.0))
    return Together(parts)
