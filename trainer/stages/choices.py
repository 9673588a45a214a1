"""Which experts a batch's tokens visit, by the weights that were read and by the newest ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

Seen = tuple[int, int]
"""(number of a batch, number of a microbatch)."""
Counts = dict[str, float]


@runtime_checkable
class Chooses(Protocol):
    """A layer that chooses experts. After a forward, `chosen` has their numbers, int64 [tokens,
    chosen], and `loads` how many tokens visit each, int64 [experts].
    """

    chosen: Tensor | None
    loads: Tensor | None


class NoChoices:
    """Records nothing; the interface of what sees a stage's choices."""

    def seen(self, part: Seen) -> None:
        """Sees the layers just after their forward on a microbatch."""

    def found(self) -> dict[str, Counts]:
        """By layer: `pairs` of a token and an expert, those that `changed`, and the `least` and
        the `most` loaded expert as multiples of the mean load. Empty if nothing was seen.
        """
        return {}


class Choices(NoChoices):
    """Sees each microbatch of one batch twice: first by the newest weights, then as it is trained.

    A pair has changed if the newest weights would send its token to none of the same number.
    """

    def __init__(self, module: nn.Module, batch: int) -> None:
        layers = {name: part for name, part in module.named_modules() if isinstance(part, Chooses)}
        self._layers: Mapping[str, Chooses] = layers
        self._batch = batch
        self._fresh: dict[tuple[str, Seen], Tensor] = {}
        self._pairs: Counter[str] = Counter()
        self._changed: dict[str, Tensor] = {}
        self._loads: dict[str, Tensor] = {}

    def seen(self, part: Seen) -> None:
        """Keeps the first choice of each microbatch, and compares the second with it."""
        if part[0] != self._batch:
            return
        for name, layer in self._layers.items():
            assert layer.chosen is not None
            assert layer.loads is not None
            if (name, part) not in self._fresh:
                self._fresh[name, part] = layer.chosen
            else:
                self._compare(name, layer.chosen, self._fresh.pop((name, part)), layer.loads)

    def _compare(self, name: str, chosen: Tensor, fresh: Tensor, loads: Tensor) -> None:
        changed = (chosen.unsqueeze(-1) != fresh.unsqueeze(-2)).all(-1).sum()
        self._pairs[name] += chosen.numel()
        self._changed[name] = self._changed.get(name, 0) + changed
        self._loads[name] = self._loads.get(name, 0) + loads

    def found(self) -> dict[str, Counts]:
        """See `NoChoices`."""
        return {
            name: {
                "pairs": float(pairs),
                "changed": float(self._changed[name]),
                "least": float(self._loads[name].min()) * len(self._loads[name]) / pairs,
                "most": float(self._loads[name].max()) * len(self._loads[name]) / pairs,
            }
            for name, pairs in self._pairs.items()
        }


def summary(found: Mapping[str, Counts]) -> dict[str, dict[str, float]]:
    """`routing`: the share of changed pairs in all layers, the least and the greatest load of any
    expert; empty for a model without a choice.
    """
    if not found:
        return {}
    layers = found.values()
    changed = sum(layer["changed"] for layer in layers) / sum(layer["pairs"] for layer in layers)
    least, most = min(layer["least"] for layer in layers), max(layer["most"] for layer in layers)
    return {"routing": {"changed_share": changed, "least_load": least, "greatest_load": most}}
