"""The published algorithms for hidden matrices, written naively: see also optimizers.py."""

import math

import numpy as np
import torch
from torch import Tensor

from pipegap.trainer.optimizers.kronecker import own_stream
from tests.oracles.dion import dion2, dion3
from tests.oracles.hyperball import POLYNOMIALS, cautious
from tests.oracles.kl_soap import kl_soap
from tests.oracles.optimizers import MATRICES, Batches, Settings


def orthogonalised(m: Tensor, steps: int = 5, iteration: str = "newton_schulz") -> Tensor:
    """Jordan's quintic Newton-Schulz iteration, or another one."""
    if m.shape[0] > m.shape[1]:
        return orthogonalised(m.T, steps, iteration).T
    x = m / m.norm()
    for first, third, fifth in POLYNOMIALS[iteration][:steps]:
        a = x @ x.T
        x = first * x + (third * a + fifth * a @ a) @ x
    return x


def muon(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    rows, columns = w.shape
    scales = {
        "original": max(1, rows / columns) ** 0.5,
        "match_rms_adamw": 0.2 * max(rows, columns) ** 0.5,
    }
    m = torch.zeros_like(w)
    for g, factor in batches:
        m = o.momentum * m + g
        ahead = g + o.momentum * m if o.nesterov else m
        direction = orthogonalised(ahead, o.newton_schulz_steps, o.orthogonalisation)
        decay = cautious(w, direction) if o.cautious_decay else w
        w = w - o.lr * factor * (scales[o.scaling] * direction + o.weight_decay * decay)
    return w


def normuon(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    m, v = torch.zeros_like(w), w.new_zeros(len(w), 1)
    for g, factor in batches:
        m = o.momentum * m + (1 - o.momentum) * g
        ahead = (1 - o.momentum) * g + o.momentum * m if o.nesterov else m
        direction = orthogonalised(ahead, o.newton_schulz_steps)
        rows = (direction**2).mean(1, keepdim=True)
        v = o.variance_decay * v + (1 - o.variance_decay) * rows
        step = direction / (v.sqrt() + o.eps)
        sizes = {
            "match_rms": 0.2 * w.numel() ** 0.5,
            "preserve_norm": direction.norm() * max(1, w.shape[0] / w.shape[1]) ** 0.5,
        }
        w = w - o.lr * factor * (sizes[o.scaling] * step / step.norm() + o.weight_decay * w)
    return w


def adamuon(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    m = v = torch.zeros_like(w)
    for g, factor in batches:
        m = o.momentum * m + g
        ahead = g + o.momentum * m if o.nesterov else m
        direction = orthogonalised(ahead.sign(), o.newton_schulz_steps)
        v = o.variance_decay * v + (1 - o.variance_decay) * direction**2
        step = direction / (v.sqrt() + o.eps)
        size = 0.2 * w.numel() ** 0.5 / step.norm()
        w = w - o.lr * factor * (size * step + o.weight_decay * w)
    return w


def dion(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    """Algorithm 1."""
    rank = math.ceil(o.rank_fraction * min(w.shape))
    q = torch.randn(w.shape[1], rank, generator=torch.Generator().manual_seed(0)).double()
    m = torch.zeros_like(w)
    for g, factor in batches:
        b = m + g
        left = _gram_schmidt(b @ q)
        right = b.T @ left
        m = b - (1 - o.momentum) * left @ right.T
        q = right / right.norm(dim=0)
        scale = (w.shape[0] / w.shape[1]) ** 0.5
        w = w - o.lr * factor * (scale * left @ q.T + o.weight_decay * w)
    return w


def _gram_schmidt(m: Tensor) -> Tensor:
    found: list[Tensor] = []
    for column in m.T:
        rest = column - sum(((column @ other) * other for other in found), torch.zeros_like(column))
        found.append(rest / rest.norm())
    return torch.stack(found, 1)


def shampoo(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    left, right = (o.matrix_eps * torch.eye(n, dtype=w.dtype) for n in w.shape)
    for g, factor in batches:
        left, right = left + g @ g.T, right + g.T @ g
        step = _power(left, -1 / 4) @ g @ _power(right, -1 / 4)
        w = w - o.lr * factor * (step + o.weight_decay * w)
    return w


def _power(matrix: Tensor, exponent: float) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values**exponent) @ vectors.T


def soap(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    """Adam in the eigenbasis of averaged g gᵀ and gᵀ g, which the first batch only starts.

    The first basis of a null space is arbitrary: the library's products, so the library's basis.
    """
    b1, b2 = o.momentum, o.variance_decay
    g = batches[0][0]
    left, right = (1 - b2) * (g @ g.T), (1 - b2) * torch.tensordot(g, g, dims=([0], [0]))
    p, q = (torch.linalg.eigh(matrix)[1].flip(1) for matrix in (left, right))
    m = v = torch.zeros_like(w)
    for t, (g, factor) in enumerate(batches[1:], 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * (p.T @ g @ q) ** 2
        size = o.lr * factor * (1 - b2**t) ** 0.5 / (1 - b1**t)
        w = w - size * p @ ((p.T @ m @ q) / (v.sqrt() + o.eps)) @ q.T
        w = w * (1 - o.lr * factor * o.weight_decay)
        left, right = b2 * left + (1 - b2) * g @ g.T, b2 * right + (1 - b2) * g.T @ g
        if t % o.precondition_every == 0:  # one power iteration, largest eigenvalues first
            rows = (p.T @ left @ p).diagonal().argsort(descending=True)
            columns = (q.T @ right @ q).diagonal().argsort(descending=True)
            v = v[rows][:, columns]
            p = torch.linalg.qr(left @ p[:, rows])[0]
            q = torch.linalg.qr(right @ q[:, columns])[0]
    return w


def basis_rotation(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    """Adam of pᵀ g q; m is kept unrotated here, and v entry by entry, whatever the basis.

    The basis of a null space is arbitrary: the same averages to the bit, so the same basis.
    """
    b1, b2 = o.momentum, o.variance_decay
    left, right = (torch.zeros(n, n, dtype=w.dtype) for n in w.shape)
    m = v = torch.zeros_like(w)
    p, q = left, right
    for t, (g, factor) in enumerate(batches):
        left, right = torch.lerp(left, g @ g.T, 1 - b2), torch.lerp(right, g.T @ g, 1 - b2)
        if t % o.precondition_every == 0:
            p, q = (torch.linalg.eigh(matrix)[1] for matrix in (left, right))
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * (p.T @ g @ q) ** 2
        step = p.T @ m @ q / (1 - b1 ** (t + 1))
        step = step / ((v / (1 - b2 ** (t + 1))).sqrt() + o.eps)
        w = w - o.lr * factor * (p @ step @ q.T + o.weight_decay * w)
    return w


def kron(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    """PSGD with P = (QᵀQ) ⊗ …, Q fitted to E[A Aᵀ] = E[B Bᵀ] of gradient and noise."""
    left, right = (torch.eye(n, dtype=w.dtype) for n in w.shape)
    m = torch.zeros_like(w)
    for t, (g, factor) in enumerate(batches, 1):
        with own_stream(torch.initial_seed(), t - 1, set()):
            balanced = np.random.random() < 0.01
            noise = [torch.randn(shape, dtype=w.dtype) for shape in MATRICES[: place + 1]][-1]
        if balanced:
            sizes = left.abs().max(), right.abs().max()
            mean = (sizes[0] * sizes[1]).sqrt()
            left, right = left * mean / sizes[0], right * mean / sizes[1]
        m = o.momentum * m + (1 - o.momentum) * g
        mean = m / (1 - o.momentum**t)
        a = left @ mean @ right.T
        b = torch.linalg.inv(left).T @ noise @ torch.linalg.inv(right)
        left = left - 0.1 * _whitening(a @ a.T, b @ b.T) @ left
        right = right - 0.1 * _whitening(a.T @ a, b.T @ b) @ right
        step = left.T @ left @ mean @ right.T @ right
        step = step * min(1, 1.1 / (step.square().mean().sqrt() + 1e-6))
        w = w - o.lr * factor * (step + o.weight_decay * w)
    return w


def _whitening(a: Tensor, b: Tensor) -> Tensor:
    """(A − B)'s upper triangle over a lower bound of the spectral norm of A + B, symmetric."""
    both = a + b
    row = both[both.square().sum(0).argmax()]
    ahead = both @ (row / row.norm())
    return (a - b).triu() / (both @ (ahead / ahead.norm())).norm()


def scion(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    m = torch.zeros_like(w)
    for g, factor in batches:
        m = o.momentum * m + (1 - o.momentum) * g
        if place < 0:
            corner = o.embedding_radius * m.sign() / w.shape[1]
        else:
            corner = o.radius * (w.shape[0] / w.shape[1]) ** 0.5 * orthogonalised(m)
        w = w - o.lr * factor * (w + corner)
    return w


OF_MATRICES = [
    muon,
    normuon,
    adamuon,
    dion,
    dion2,
    dion3,
    shampoo,
    soap,
    kl_soap,
    basis_rotation,
    kron,
]
"""The rest of the weights is AdamW's."""
