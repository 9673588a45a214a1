"""Published algorithms for matrices of constant norm, and nanochat's, by singular values.

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
    left, values, right = torch.linalg.svd(m, full_matrices=False)
    share, eps = SHARES[o.orthogonalisation]
    values = values / (share * values.square().sum().sqrt() + eps)
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


def cautious(w: Tensor, update: Tensor) -> Tensor:
    """What of a weight decays: entries that the update does not enlarge."""
    return torch.where(w.sign() * update.sign() >= 0, w, 0)


OF_MATRICES = [muonh, adamh, normuonh, nanochat]
"""The rest of the weights is AdamW's."""
