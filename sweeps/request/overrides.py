"""Overrides, as on Hydra's command line: what they set, and what they may not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainer.base.errors import BadInput

Value = str | int | float | bool | dict[str, Any] | None

RESERVED = {
    "seed": "is set by the sweep's seeds: seeds=[…]",
    "out": "would be the folder of every trial: choose the store by results=DIR",
}
"""Key that a sweep itself sets for each trial → why it cannot be given."""
PREFIXES = "+~"
"""Hydra's: `+key=` adds, `++key=` adds or replaces, `~key` removes."""


def refuse_reserved(words: Iterable[str]) -> None:
    """Raises BadInput for an override of a reserved key."""
    for word in words:
        key, _, value = word.partition("=")
        if (plain := key.lstrip(PREFIXES)) in RESERVED:
            raise BadInput(key, value, RESERVED[plain])


def keys(words: Iterable[str]) -> list[str]:
    """The keys that these overrides set, without Hydra's prefixes."""
    return [word.split("=")[0].lstrip(PREFIXES) for word in words]


def overrides(key: str, value: Value) -> list[str]:
    """The overrides that a value of the grid's axis `key` stands for."""
    if isinstance(value, dict):
        return [override for name, part in value.items() for override in overrides(name, part)]
    return [f"{key}={'null' if value is None else value}"]
