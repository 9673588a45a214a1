"""The published algorithms, written naively from their equations: one weight, in fp64, no batching.

Each takes the weight at the start, its gradients with the learning rate's factor at each update,
the settings of conf/optimizer/, and which of the matrices it is; and returns the weight at the end.
"""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace as Settings

import torch
from torch import Tensor

Batches = Sequence[tuple[Tensor, float]]
MATRICES = [(8, 8), (6, 10), (10, 6), (8, 8)]
"""Shapes of the problem's hidden matrices; a batch by shape has one or two of them."""


def adam(
    w: Tensor, batches: Batches, lr: float, b1: float, b2: float, eps: float, wd: float
) -> Tensor:
    m = v = torch.zeros_like(w)
    for t, (g, factor) in enumerate(batches, 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        step = m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + eps)
        w = w - lr * factor * (step + wd * w)
    return w


def adamw(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    return adam(w, batches, o.lr, o.momentum, o.variance_decay, o.eps, o.weight_decay)


def auxiliary(w: Tensor, batches: Batches, o: Settings, variance_decay: float) -> Tensor:
    lr, decay = o.auxiliary_lr or o.lr, getattr(o, "weight_decay", 0)
    return adam(w, batches, lr, o.auxiliary_momentum, variance_decay, o.eps, decay)


def nadamw(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    """Dozat 2016, with its schedule of the momentum."""

    def momentum(t: int) -> float:
        return o.momentum * (1 - 0.5 * 0.96 ** (t * o.momentum_decay))

    m = v = torch.zeros_like(w)
    product = 1.0
    for t, (g, factor) in enumerate(batches, 1):
        m = o.momentum * m + (1 - o.momentum) * g
        v = o.variance_decay * v + (1 - o.variance_decay) * g**2
        product *= momentum(t)
        now = (1 - momentum(t)) * g / (1 - product)
        ahead = momentum(t + 1) * m / (1 - product * momentum(t + 1))
        root = (v / (1 - o.variance_decay**t)).sqrt() + o.eps
        w = w - o.lr * factor * ((now + ahead) / root + o.weight_decay * w)
    return w


def adan(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    """Algorithm 1; a, b, c are the decays of m, d, n."""
    a, b, c = o.momentum, o.difference_decay, o.variance_decay
    m = d = n = torch.zeros_like(w)
    last = batches[0][0]
    for t, (g, factor) in enumerate(batches, 1):
        m, d = a * m + (1 - a) * g, b * d + (1 - b) * (g - last)
        n = c * n + (1 - c) * (g + b * (g - last)) ** 2
        root = (n / (1 - c**t)).sqrt() + o.eps
        step = (m / (1 - a**t) + b * d / (1 - b**t)) / root
        w = (w - o.lr * factor * step) / (1 + o.lr * factor * o.weight_decay)
        last = g
    return w


def adopt(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    m, v = torch.zeros_like(w), batches[0][0] ** 2
    for t, (g, factor) in enumerate(batches[1:], 1):
        bound = t**0.25
        normal = (g / v.sqrt().clamp(min=o.eps)).clamp(-bound, bound)
        m = o.momentum * m + (1 - o.momentum) * normal
        w = w - o.lr * factor * (m + o.weight_decay * w)
        v = o.variance_decay * v + (1 - o.variance_decay) * g**2
    return w


def ademamix(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    fast = slow = v = torch.zeros_like(w)
    p, q = math.log(o.momentum), math.log(o.slow_momentum)
    for t, (g, factor) in enumerate(batches, 1):
        way = min(t / o.slow_warmup, 1)
        decay = math.exp(p * q / ((1 - way) * q + way * p))
        fast = o.momentum * fast + (1 - o.momentum) * g
        slow = decay * slow + (1 - decay) * g
        v = o.variance_decay * v + (1 - o.variance_decay) * g**2
        mixed = fast / (1 - o.momentum**t) + way * o.slow_share * slow
        root = (v / (1 - o.variance_decay**t)).sqrt() + o.eps
        w = w - o.lr * factor * (mixed / root + o.weight_decay * w)
    return w


def mars(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    if w.ndim == 1:
        o = Settings(**{**vars(o), "weight_decay": 0})
        return auxiliary(w, batches, o, o.auxiliary_variance_decay)
    last = torch.zeros_like(w)
    corrected = []
    for g, factor in batches:
        c = g + o.correction * o.momentum / (1 - o.momentum) * (g - last)
        corrected.append((c / max(1, c.norm()), factor))
        last = g
    return adamw(w, corrected, o, place)


def sgd(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    return _sgd(w, batches, o, coupled=o.weight_decay, decoupled=0.0)


def sgdw(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    return _sgd(w, batches, o, coupled=0.0, decoupled=o.weight_decay)


def _sgd(w: Tensor, batches: Batches, o: Settings, coupled: float, decoupled: float) -> Tensor:
    m = torch.zeros_like(w)
    for raw, factor in batches:
        g = raw + coupled * w
        m = o.momentum * m + g
        step = g + o.momentum * m if o.nesterov else m
        w = w - o.lr * factor * (step + decoupled * w)
    return w


def lion(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    m = torch.zeros_like(w)
    for g, factor in batches:
        sign = (o.interpolation * m + (1 - o.interpolation) * g).sign()
        w = w * (1 - o.lr * factor * o.weight_decay) - o.lr * factor * sign
        m = o.momentum * m + (1 - o.momentum) * g
    return w


def signum(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    m = torch.zeros_like(w)
    for g, factor in batches:
        m = o.momentum * m + (1 - o.momentum) * g
        w = w * (1 - o.lr * factor * o.weight_decay) - o.lr * factor * m.sign()
    return w


def schedule_free_adamw(w: Tensor, batches: Batches, o: Settings, place: int) -> Tensor:
    return schedule_free(w, batches, o)[0]


def schedule_free(w: Tensor, batches: Batches, o: Settings) -> tuple[Tensor, Tensor]:
    """y and x of the paper's equations; x is averaged by the squared largest learning rate."""
    x = y = z = w
    v = torch.zeros_like(w)
    total = largest = 0.0
    for t, (g, factor) in enumerate(batches, 1):
        lr = o.lr * factor
        v = o.variance_decay * v + (1 - o.variance_decay) * g**2
        root = (v / (1 - o.variance_decay**t)).sqrt() + o.eps
        z = z - lr * (g / root + o.weight_decay * y)
        largest = max(largest, lr)
        total += largest**2
        x = x + largest**2 / total * (z - x)
        y = o.momentum * x + (1 - o.momentum) * z
    return y, x


Reference = Callable[[Tensor, Batches, Settings, int], Tensor]
OF_EVERY_WEIGHT = [adamw, adan, ademamix, adopt, lion, mars, nadamw, sgd, sgdw, signum]
