"""Published algorithms that orthogonalise by singular values: of matrices of constant norm,
nanochat's, SOAP-Muon and Muown.

See optimizers.py for the arguments.
"""

import torch
from torch import Tensor

from pipegap.trainer.optimizers.orthogonal import POLAR_EXPRESS
from tests.oracles.optimizers import Batches, Settings

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


def orthogonalised(m: Tensor, o: Settings) -> Tensor:
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
    return orthogonalised((1 - o.momentum) * (g + o.momentum * m if o.nesterov else m), o)


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
        x = orthogonalised(x, o)
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
        step = orthogonalised(of_v + o.momentum * m if o.nesterov else m, o)
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


OF_MATRICES = [muonh, adamh, normuonh, nanochat, soap_muon, muown]
"""The rest of the weights is AdamW's."""
