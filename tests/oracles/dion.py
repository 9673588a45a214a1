"""Dion2 and Dion3, written naively: one weight, in fp64, Polar Express by singular values.

These equations and the authors' code (github.com/microsoft/dion, commit 0a059a4, with bf16 and fp32
replaced by fp64, for six matrices and fractions of 0.25, 0.5 and 1) were both compared with ours:
over 50 updates the authors' weights differ by at most 2.2e-15 of their displacement.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tests.oracles.hyperball import POLYNOMIALS
from tests.oracles.optimizers import Batches, Settings

Even = Callable[[Tensor, Tensor], Tensor]
"""(rows of an update, their places) → rows of the same norm."""


def dion2(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    """Of a tall matrix it takes columns: rows of its transpose."""
    rows, columns = w.shape
    if rows <= columns:
        return _dion(w, batches, o, (rows / columns) ** 0.5, lambda step, taken: step)
    turned = [(g.T, factor) for g, factor in batches]
    return _dion(w.T, turned, o, (rows / columns) ** 0.5, lambda step, taken: step).T


def dion3(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    """NorMuon's second moment has an entry for each row, which ages when the row is taken."""
    v = w.new_zeros(len(w))

    def evened(step: Tensor, taken: Tensor) -> Tensor:
        b = o.variance_decay
        v[taken] = b * v[taken] + (1 - b) * (step**2).mean(1)
        even = step / (v[taken].sqrt() + o.eps)[:, None]
        return even * step.norm() / even.norm()

    return _dion(w, batches, o, (w.shape[0] / w.shape[1]) ** 0.5, evened)


def _dion(w: Tensor, batches: Batches, o: Settings, scale: float, evened: Even) -> Tensor:
    m = torch.zeros_like(w)
    for g, factor in batches:
        m = m + g
        sizes = m.abs().sum(1)
        taken = sizes.argsort(descending=True)[: math.ceil(o.fraction * len(w))]
        step = torch.zeros_like(w)
        step[taken] = evened(_orthonormal(m[taken], o.eps), taken)
        m[taken] *= o.momentum
        w = w - o.lr * factor * (scale * step + o.weight_decay * w)
    return w


def _orthonormal(m: Tensor, eps: float) -> Tensor:
    left, values, right = torch.linalg.svd(m, full_matrices=False)
    values = values / (1.02 * m.norm() + eps)
    for a, b, c in POLYNOMIALS["polar_express"]:
        values = a * values + b * values**3 + c * values**5
    return left @ torch.diag(values) @ right
