"""Optimizers of conf/optimizer/ as linear filters of their gradients, or why they are none.

The theory covers the optimizers that have an entry here. A filter is what the optimizer does with
its gradients in time: its momentum, Nesterov's look-ahead, differences of gradients. What the
optimizer does with gradients in space (a division by second moments, a rotation, an
orthogonalisation, a sign) is held fixed, as one preconditioner. For momentum alone that is exact;
for orthogonalisation, sign and constant norms it is an analogy. Decay of the weights is left out:
lr · weight_decay is below 0.001 in conf/. Constants depend on the update where an optimizer has a
schedule of its own; `updates` says how many updates are over, infinity that the schedule is.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from analysis.theory.filters import SAME, Filter, average, change, late, total
from trainer.base.build import Node, published
from trainer.base.errors import BadInput

Settings = Mapping[str, Any]
Linear = Callable[[Settings, float], Filter]


def linear(node: Node, updates: float = math.inf) -> Filter:
    """The filter of an optimizer with its settings, after so many updates.

    Gradients are in units of lr and preconditioner: u = lr · P⁻¹ · filter(g). Raises BadInput for
    an optimizer that has no linear recursion, with the reason.
    """
    address = published(node["_target_"])
    if address not in LINEAR:
        raise BadInput("optimizer", address.rpartition(".")[2], NOT_LINEAR.get(address, UNKNOWN))
    return LINEAR[address](node, updates)


def _averaged(settings: Settings, updates: float) -> Filter:
    """m ← β m + (1 − β) g, and m is applied."""
    return average(settings["momentum"])


def _summed(settings: Settings, updates: float) -> Filter:
    """b ← β b + g, and b is applied, or g + β b: Nesterov's."""
    summed = total(settings["momentum"])
    return SAME + settings["momentum"] * summed if settings["nesterov"] else summed


def _look_ahead(settings: Settings, updates: float) -> Filter:
    """m ← β m + (1 − β) g, and m is applied, or (1 − β) g + β m: Nesterov's."""
    momentum = settings["momentum"]
    return _ahead(momentum, momentum) if settings["nesterov"] else average(momentum)


def _ahead(decay: float, share: float) -> Filter:
    """(1 − share) g + share · m."""
    return (1 - share) * SAME + share * average(decay)


def _nadamw(settings: Settings, updates: float) -> Filter:
    """The share of m in the update grows with the updates, from half of β to β; its decay is β."""
    ramp = 0.96 ** (updates * settings["momentum_decay"]) if settings["momentum_decay"] else 1.0
    return _ahead(settings["momentum"], settings["momentum"] * (1 - 0.5 * ramp))


def _adan(settings: Settings, updates: float) -> Filter:
    """m + β d, where d averages the differences of gradients with decay β."""
    decay = settings["difference_decay"]
    return average(settings["momentum"]) + decay * (average(decay) * change())


def _ademamix(settings: Settings, updates: float) -> Filter:
    """A fast average and `slow_share` times a slow one, both still growing in the slow warm-up."""
    way, decay = min(updates / settings["slow_warmup"], 1.0), settings["slow_momentum"]
    if way < 1:
        fast, slow = math.log(settings["momentum"]), math.log(decay)
        decay = math.exp(fast * slow / ((1 - way) * slow + way * fast))
    return average(settings["momentum"]) + way * settings["slow_share"] * average(decay)


def _mars(settings: Settings, updates: float) -> Filter:
    """The average of g_t + γ β / (1 − β) · (g_t − g_{t−1})."""
    decay = settings["momentum"]
    return (SAME + settings["correction"] * decay / (1 - decay) * change()) * average(decay)


def _lion(settings: Settings, updates: float) -> Filter:
    """interpolation · m_{t−1} + (1 − interpolation) · g_t."""
    share = settings["interpolation"]
    return share * (late(1) * average(settings["momentum"])) + (1 - share) * SAME


_HERE = "trainer.optimizers"
LINEAR: Mapping[str, Linear] = {
    f"{_HERE}.sgd": _summed,
    f"{_HERE}.sgdw": _summed,
    f"{_HERE}.adamw": _averaged,
    f"{_HERE}.nadamw": _nadamw,
    f"{_HERE}.adan": _adan,
    f"{_HERE}.adopt": _averaged,
    f"{_HERE}.ademamix": _ademamix,
    f"{_HERE}.mars": _mars,
    f"{_HERE}.lion": _lion,
    f"{_HERE}.signum": _averaged,
    f"{_HERE}.muon": _look_ahead,
    f"{_HERE}.normuon": _look_ahead,
    f"{_HERE}.scion": _averaged,
    f"{_HERE}.hyperball.muonh": _look_ahead,
    f"{_HERE}.hyperball.normuonh": _look_ahead,
    f"{_HERE}.hyperball.adamh": _averaged,
    f"{_HERE}.nanochat.nanochat": _look_ahead,
    f"{_HERE}.soap": _averaged,
    f"{_HERE}.kl_soap.kl_soap": _averaged,
    f"{_HERE}.basis_rotation.basis_rotation": _averaged,
    f"{_HERE}.sophia": _averaged,
    f"{_HERE}.shampoo": lambda settings, updates: SAME,
}
"""Published address of an optimizer → its filter, for matrices."""

UNKNOWN = "is not covered by the theory"
NOT_LINEAR: Mapping[str, str] = {
    f"{_HERE}.adamuon": "is not linear: it orthogonalises the sign of its momentum",
    f"{_HERE}.dion": "is not linear: its momentum forgets only what it applied, of low rank",
    f"{_HERE}.dion2.dion2": "is not linear: its momentum forgets only the part that it applied",
    f"{_HERE}.dion2.dion3": "is not linear: its momentum forgets only the rows that it applied",
    f"{_HERE}.kron": "is not linear: random vectors change its preconditioner at every update",
    f"{_HERE}.schedule_free_adamw": "has no fixed recursion: it averages over the whole run",
}
"""Published address → why there is no such filter, where the reason is known."""
