"""KL-SOAP, written naively: one weight, in fp64, with the inverses of both factors.

The authors' code (github.com/yorkerlin/KL-Methods, commit a02e622, with bf16 and fp32 replaced by
fp64) was compared with ours too: six matrices, bases renewed every 3 or 10 updates, eigenvalues
clamped or not. Over 50 updates its weights differ by at most 5.6e-15 of their displacement.
"""

import torch
from torch import Tensor

from tests.oracles.optimizers import Batches, Settings


def kl_soap(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    """The momentum is kept unrotated here. The first batch only starts the factors.

    The first basis of a null space is arbitrary: the same products as ours, so the same basis.
    """
    b1, b2 = o.momentum, o.variance_decay
    rows, columns = w.shape
    g = batches[0][0]
    left, right = g @ g.T * ((1 - b2) / columns), g.T @ g * ((1 - b2) / rows)
    p, q = (torch.linalg.eigh(matrix)[1].flip(1) for matrix in (left, right))
    of_rows, of_columns = w.new_full((rows,), 0.1), w.new_full((columns,), 0.1)
    m = v = torch.zeros_like(w)
    for t, (g, factor) in enumerate(batches[1:], 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * (p.T @ g @ q) ** 2
        step = p @ ((p.T @ m @ q) / (v.sqrt() + o.eps)) @ q.T
        w = (w - o.lr * factor * step) * (1 - o.lr * factor * o.weight_decay)
        by_columns = g @ q @ torch.diag(1 / of_columns) @ q.T @ g.T / columns
        by_rows = g.T @ p @ torch.diag(1 / of_rows) @ p.T @ g / rows
        left, right = b2 * left + (1 - b2) * by_columns, b2 * right + (1 - b2) * by_rows
        of_rows = _averaged(of_rows, p.T @ by_columns @ p, b2)
        of_columns = _averaged(of_columns, q.T @ by_rows @ q, b2)
        if t % o.precondition_every == 0:
            p, q = torch.linalg.qr(left @ p)[0], torch.linalg.qr(right @ q)[0]
    return w


def _averaged(values: Tensor, factor: Tensor, decay: float) -> Tensor:
    smallest = max(10, min(len(values), 4000)) ** -2
    return (decay * values + (1 - decay) * factor.diagonal()).clamp(min=smallest)
