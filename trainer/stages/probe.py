"""How far a delayed update is from the fresh one (arXiv 2606.30634, figures 17 and 18).

The fresh update of batch t is the one that the same optimizer state would have made of the gradient
at W(t). It takes a second gradient and a second optimizer step, of which nothing is left behind.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from trainer import optimizer_state
from trainer.optimizers import Kind
from trainer.resources import random_state, restore_random_state

Sums = dict[str, float]
"""Inner products of what a weight's update is made of, by name."""


class NoProbe:
    """Watches nothing; the interface of a probe of one update of a stage."""

    def raw(self, gradients: Sequence[Tensor]) -> None:
        """Sees the averaged gradients, not yet corrected."""

    def corrected(self, gradients: Sequence[Tensor]) -> None:
        """Sees them corrected, not yet clipped."""

    def before(self, weights: Sequence[Tensor]) -> None:
        """Sees W(t)."""

    def stepped(self, weights: Sequence[Tensor]) -> None:
        """Sees W(t) − u_t."""

    def applied(self, weights: Sequence[Tensor]) -> None:
        """Sees W(t+1)."""

    def found(self) -> list[Sums]:
        """What it saw, a weight each; nothing if there was nothing to see."""
        return []


class Probe(NoProbe):
    """Compares one update with `fresh`, a tensor a weight. Holds two more of each."""

    def __init__(self, fresh: Sequence[Tensor]) -> None:
        self._fresh = list(fresh)
        self._kept: list[Tensor] = []
        self._products: dict[str, Tensor] = {"fresh²": _dots(self._fresh, self._fresh)}

    @override
    def raw(self, gradients: Sequence[Tensor]) -> None:
        self._kept = [gradient.clone() for gradient in gradients]
        self._products["gradient²"] = _dots(gradients, gradients)

    @override
    def corrected(self, gradients: Sequence[Tensor]) -> None:
        torch._foreach_sub_(self._kept, list(gradients))
        self._products["gradient change²"] = _dots(self._kept, self._kept)

    @override
    def before(self, weights: Sequence[Tensor]) -> None:
        self._kept = [weight.clone() for weight in weights]
        self._products["weight²"] = _dots(weights, weights)

    @override
    def stepped(self, weights: Sequence[Tensor]) -> None:
        self._compare("update", weights)

    @override
    def applied(self, weights: Sequence[Tensor]) -> None:
        self._compare("applied", weights)

    def _compare(self, name: str, weights: Sequence[Tensor]) -> None:
        update = torch._foreach_sub(self._kept, list(weights))
        self._products[f"{name}²"] = _dots(update, update)
        self._products[f"{name}·fresh"] = _dots(update, self._fresh)
        torch._foreach_sub_(update, self._fresh)
        self._products[f"{name} error²"] = _dots(update, update)

    @override
    def found(self) -> list[Sums]:
        columns = {name: of.tolist() for name, of in self._products.items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _dots(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    return torch.stack([x.flatten().dot(y.flatten()) for x, y in zip(a, b, strict=True)])


def dry_update(
    optimizer: Optimizer, weights: Sequence[nn.Parameter], gradients: Sequence[Tensor]
) -> list[Tensor]:
    """u, a tensor a weight, that the optimizer would subtract; all is as before, bit for bit."""
    device = weights[0].device
    randomness = random_state(device)
    state = {w: deepcopy(of) for w, of in optimizer_state.by_weight(optimizer).items()}
    start = [weight.detach().clone() for weight in weights]
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        update = list(torch._foreach_sub(start, list(weights)))
        torch._foreach_copy_(list(weights), start)
    optimizer_state.restore(optimizer, state)
    restore_random_state(randomness, device)
    return update


Found = Mapping[str, tuple[Kind, Sums]]
"""By a weight's name: its kind and what its probe found."""


def summary(found: Found) -> dict[str, dict[str, float | None]]:
    """The whole model ("all") and each kind of weight; a ratio to nothing is None.

    `update_*` compares what the optimizer made, `applied_*` the whole change with its correction,
    both with the fresh update. Norms are Euclidean; the gradient's is that of the batch's mean,
    before correction and clip, and `gradient_change` how much the correction changed it, relative.
    """
    groups: dict[str, Counter[str]] = {"all": Counter()}
    for kind, sums in found.values():
        groups["all"].update(sums)
        groups.setdefault(kind, Counter()).update(sums)
    return {name: _figures(sums) for name, sums in groups.items()} if found else {}


def _figures(sums: Mapping[str, float]) -> dict[str, float | None]:
    norms = {name: math.sqrt(value) for name, value in sums.items() if name.endswith("²")}
    fresh = norms["fresh²"]
    compared = {
        f"{name}_{word}": value
        for name in ("update", "applied")
        for word, value in (
            ("cosine", _ratio(sums[f"{name}·fresh"], norms[f"{name}²"] * fresh)),
            ("error", _ratio(norms[f"{name} error²"], fresh)),
        )
    }
    return {
        **compared,
        "weight_norm": norms["weight²"],
        "update_norm": norms["update²"],
        "gradient_norm": norms["gradient²"],
        "gradient_change": _ratio(norms["gradient change²"], norms["gradient²"]),
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 and math.isfinite(part / whole) else None
