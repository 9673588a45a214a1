"""Late updates beside fresh ones: how far apart they are.

The fresh update of batch t is what the same optimizer state would have made from the gradient at
W(t) (arXiv 2606.30634, figures 17 and 18). It takes a second gradient and a second optimizer step
(`update.dry_update`).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from pipegap.trainer.optimizers.routing import Kind

Sums = dict[str, float]
"""Name → inner product of two parts of one weight's update."""


class NoProbe:
    """Records nothing; the interface of a probe of one update of a stage.

    The stage calls the methods in the order below, each with one tensor per weight. These tensors
    must be neither kept nor changed.
    """

    needs_update: ClassVar[bool] = False
    """Whether `stepped` reads the update."""

    def raw(self, gradients: Sequence[Tensor]) -> None:
        """Sees the averaged gradients, not yet corrected."""

    def corrected(self, gradients: Sequence[Tensor]) -> None:
        """Sees them corrected, not yet clipped."""

    def before(self, weights: Sequence[Tensor]) -> None:
        """Sees W(t)."""

    def stepped(self, update: Sequence[Tensor]) -> None:
        """Sees u_t, which the optimizer subtracted; an empty list if nobody needs it."""

    def applied(self, weights: Sequence[Tensor]) -> None:
        """Sees W(t+1)."""

    def results(self) -> list[Sums]:
        """The inner products of each weight, in order; empty if the probe records nothing."""
        return []


class Probe(NoProbe):
    """Compares one update with `fresh`, one tensor per weight. It also holds a copy of W(t)."""

    needs_update: ClassVar[bool] = True

    def __init__(self, fresh: Sequence[Tensor]) -> None:
        self._fresh = list(fresh)
        self._kept: list[Tensor] = []
        self._products: dict[str, Tensor] = {"fresh²": _dots(self._fresh, self._fresh)}

    @override
    def raw(self, gradients: Sequence[Tensor]) -> None:
        self._kept = [gradient.clone() for gradient in gradients]  # `correct` changes them in place
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
    def stepped(self, update: Sequence[Tensor]) -> None:
        self._compare("update", update)

    @override
    def applied(self, weights: Sequence[Tensor]) -> None:
        torch._foreach_sub_(self._kept, list(weights))
        self._compare("applied", self._kept)

    def _compare(self, name: str, change: Sequence[Tensor]) -> None:
        """Compares `change`, which was subtracted from W(t), with the fresh update."""
        self._products[f"{name}²"] = _dots(change, change)
        self._products[f"{name}·fresh"] = _dots(change, self._fresh)
        # Weight by weight: the errors of all weights at once might not fit.
        errors = (x - y for x, y in zip(change, self._fresh, strict=True))
        self._products[f"{name} error²"] = torch.stack([_dot(error, error) for error in errors])

    @override
    def results(self) -> list[Sums]:
        columns = {name: products.tolist() for name, products in self._products.items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _dots(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    return torch.stack([_dot(x, y) for x, y in zip(a, b, strict=True)])


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return x.flatten().dot(y.flatten())


Comparison = Mapping[str, tuple[Kind, Sums]]
"""Name of a weight → its kind and the inner products that its probe found."""


def summary(comparison: Comparison) -> dict[str, dict[str, float | None]]:
    """The diagnostics of the whole model ("all") and of each kind of weight.

    `update_*` compares the optimizer's update with the fresh one, `applied_*` the whole change,
    correction included. Norms are Euclidean. `gradient_norm` is that of the batch's mean gradient
    before correction and clip; `gradient_change` is the relative change that the correction makes
    to it. A ratio whose denominator is 0 is None.
    """
    # Squares and products add up over weights: ratios are made of the sums.
    groups: dict[str, Counter[str]] = {"all": Counter()}
    for kind, sums in comparison.values():
        groups["all"].update(sums)
        groups.setdefault(kind, Counter()).update(sums)
    return {name: _figures(sums) for name, sums in groups.items()} if comparison else {}


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
