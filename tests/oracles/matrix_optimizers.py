"""Dion2 and Dion3, written naively: one weight, in fp64, Polar Express by singular values.

These equations and the authors' code (github.com/microsoft/dion, commit 0a059a4, with bf16 and fp32
replaced by fp64, for six matrices and fractions of 0.25, 0.5 and 1) were both compared with ours:
over 50 updates the authors' weights differ by at most 2.2e-15 of their displacement."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pipegap.trainer.optimizers.kronecker import own_stream
from pipegap.trainer.optimizers.orthogonal import POLAR_EXPRESS
from tests.oracles.optimizers import MATRICES, Batches, Settings

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


# KL-SOAP, written naively: one weight, in fp64, with the inverses of both factors.
#
# The authors' code (github.com/yorkerlin/KL-Methods, commit a02e622, with bf16 and fp32 replaced
# by fp64) was compared with ours too: six matrices, bases renewed every 3 or 10 updates,
# eigenvalues clamped or not. Over 50 updates its weights differ by at most 5.6e-15 of their
# displacement.


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


# The published algorithms for hidden matrices, written naively: see also optimizers.py.


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
    *(muon, normuon, adamuon, dion, dion2, dion3),
    *(shampoo, soap, kl_soap, basis_rotation, kron),
]
"""The rest of the weights is AdamW's."""


# Published algorithms that orthogonalise by singular values: of matrices of constant norm,
# nanochat's, SOAP-Muon and Muown.
#
# See optimizers.py for the arguments.

POLYNOMIALS = {
    "newton_schulz": [(3.4445, -4.7750, 2.0315)] * 20,
    "quintic": [
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ],
    "polar_express": POLAR_EXPRESS,  # which test_references.py shows to be minimax
    "convergent": [(2, -1.5, 0.5)] * 20,
}
SHARES = {
    "newton_schulz": (1, 1e-7),
    "quintic": (1, 1e-8),
    "polar_express": (1.01, 1e-6),
    "convergent": (1, 1e-7),
}
"""What the Frobenius norm is multiplied by, and what is added to it."""


def orthogonalised_of_hyperball(m: Tensor, o: Settings) -> Tensor:
    share, eps = SHARES[o.orthogonalisation]
    return driven(m, o, share * m.square().sum().sqrt() + eps)


def driven(m: Tensor, o: Settings, bound: Tensor) -> Tensor:
    left, values, right = torch.linalg.svd(m, full_matrices=False)
    values = values / bound
    for a, b, c in POLYNOMIALS[o.orthogonalisation][: o.newton_schulz_steps]:
        values = a * values + b * values**3 + c * values**5
    return left @ torch.diag(values) @ right


def muon_direction(m: Tensor, g: Tensor, o: Settings) -> Tensor:
    """Of what is orthogonalised only the direction counts."""
    return orthogonalised_of_hyperball(
        (1 - o.momentum) * (g + o.momentum * m if o.nesterov else m), o
    )


def on_sphere(w: Tensor, update: Tensor, lr: float, radius: Tensor) -> Tensor:
    ahead = w - lr * radius * update / update.norm()
    return radius * ahead / ahead.norm()


def muonh(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    radius, m = w.norm(), torch.zeros_like(w)
    for g, factor in batches:
        m = o.momentum * m + g
        w = on_sphere(w, muon_direction(m, g, o), o.lr * factor, radius)
    return w


def adamh(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    radius, b1, b2 = w.norm(), o.momentum, o.variance_decay
    m = v = torch.zeros_like(w)
    for t, (g, factor) in enumerate(batches, 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        update = m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + o.eps)
        w = on_sphere(w, update, o.lr * factor, radius)
    return w


def normuonh(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    radius, m, v = w.norm(), torch.zeros_like(w), 0.0
    for g, factor in batches:
        m = o.momentum * m + g
        direction = muon_direction(m, g, o)
        v = o.variance_decay * v + (1 - o.variance_decay) * mean_squares(direction)
        w = on_sphere(w, direction / v**0.5, o.lr * factor, radius)
    return w


def mean_squares(m: Tensor) -> Tensor:
    """Of the rows, or of the columns of a wide matrix."""
    return m.square().mean(0 if m.shape[0] < m.shape[1] else 1, keepdim=True)


def nanochat(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    rows, columns = w.shape
    m, v = torch.zeros_like(w), 0.0
    for g, factor in batches:
        m = o.momentum * m + (1 - o.momentum) * g
        x = (1 - o.momentum) * g + o.momentum * m if o.nesterov else m
        if o.equilibrate_rows:
            x = torch.diag((x.square().sum() / rows / x.square().sum(1)) ** 0.5) @ x
        x = orthogonalised_of_hyperball(x, o)
        if o.renormalise:
            x = min(rows, columns) ** 0.5 * x / x.norm()
        if o.second_moment:
            v = o.variance_decay * v + (1 - o.variance_decay) * mean_squares(x)
            even = x / v**0.5
            x = x.norm() * even / even.norm()
        lr = o.lr * factor * (rows / columns if rows > columns else 1) ** 0.5
        w = w - lr * (x + o.weight_decay * (cautious(w, x) if o.cautious_decay else w))
    return w


def soap_muon(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    """The first basis of a null space is arbitrary: the same products as ours, so the same one."""
    b1, b2 = o.momentum, o.variance_decay
    m = v = torch.zeros_like(w)
    left, right = (w.new_zeros(n, n) for n in w.shape)
    p = q = torch.empty(0)
    for t, (g, factor) in enumerate(batches):
        m = b1 * m + (1 - b1) * g
        x = (1 - b1) * g + b1 * m if o.nesterov else m
        if t > 0:
            x = p.T @ x @ q
            v = b2 * v + (1 - b2) * x**2
            x = p @ (x / v.sqrt().clamp(min=o.eps)) @ q.T
        step = driven(x, o, (torch.linalg.svdvals(x) ** 4).sum() ** 0.25)
        step = max(1, w.shape[0] / w.shape[1]) ** 0.5 * step
        w = w - o.lr * factor * (step + o.weight_decay * w)
        left, right = b2 * left + (1 - b2) * (g @ g.T), b2 * right + (1 - b2) * (g.T @ g)
        if t == 0:
            p, q = (torch.linalg.eigh(matrix)[1].flip(1) for matrix in (left, right))
        elif t % o.precondition_every == 0:  # one power iteration, largest eigenvalues first
            rows = (p.T @ left @ p).diagonal().argsort(descending=True)
            columns = (q.T @ right @ q).diagonal().argsort(descending=True)
            v = v[rows][:, columns]
            p, q = torch.linalg.qr(left @ p[:, rows])[0], torch.linalg.qr(right @ q[:, columns])[0]
    return w


def muown(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    """Weight normalisation's two parameters, with the gradients that autograd has for them.

    A decay moves the weight; both are read off it then, and v keeps its length.
    """
    b1, b2 = o.auxiliary_momentum, o.variance_decay
    gain, v = _lengths(w), w
    m = torch.zeros_like(w)
    first = second = torch.zeros_like(gain)
    for t, (g, factor) in enumerate(batches, 1):
        of_gain, of_v = _of_parameters(gain, v, g)
        m = o.momentum * m + of_v
        step = orthogonalised_of_hyperball(of_v + o.momentum * m if o.nesterov else m, o)
        first, second = b1 * first + (1 - b1) * of_gain, b2 * second + (1 - b2) * of_gain**2
        adam = first / (1 - b1**t) / ((second / (1 - b2**t)).sqrt() + o.eps)
        v = v - o.lr * factor * 0.2 * max(w.shape) ** 0.5 * step
        w = (gain - o.lr * factor * adam) * v / _lengths(v) - o.lr * factor * o.weight_decay * w
        gain, v = _lengths(w), w / _lengths(w) * _lengths(v)
    return w


def _of_parameters(gain: Tensor, v: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
    gain, v = gain.clone().requires_grad_(), v.clone().requires_grad_()
    return torch.autograd.grad((gain * v / _lengths(v) * gradient).sum(), [gain, v])


def _lengths(rows: Tensor) -> Tensor:
    return rows.square().sum(1, keepdim=True).sqrt()


def cautious(w: Tensor, update: Tensor) -> Tensor:
    """What of a weight decays: entries that the update does not enlarge."""
    return torch.where(w.sign() * update.sign() >= 0, w, 0)


OF_MATRICES_OF_HYPERBALL = [muonh, adamh, normuonh, nanochat, soap_muon, muown]
"""The rest of the weights is AdamW's."""
