"""What the commands read from their words, and write as JSON."""

import math
from collections.abc import Mapping
from typing import Any

from pipegap.trainer.base.cli import Given, number
from pipegap.trainer.base.errors import BadInput


def amount(
    values: Given, key: str, default: float, low: float, high: float, kind: str = "a"
) -> float:
    """Return the number of `key`, or the default; raises BadInput unless it is in [low, high].

    `kind`: "a whole" refuses other numbers.
    """
    if key not in values:
        return default
    value = number(values[key])  # NaN for a word that is none, which no range holds
    if not low <= value <= high or (kind != "a" and not value.is_integer()):
        ends = f"{low:g} to {high:g}" if kind == "a" else f"{low:,.0f} to {high:,.0f}"
        raise BadInput(key, values[key], f"must be {kind} number from {ends}")
    return value


def count(values: Given, key: str, default: int, high: int, low: int = 1) -> int:
    """Return the whole number of `key`, or the default; raises BadInput if out of [low, high]."""
    return int(amount(values, key, default, low, high, "a whole"))


def plain(node: Any) -> Any:
    """Return `node` with None for numbers that JSON does not have."""
    if isinstance(node, Mapping):
        return {key: plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [plain(value) for value in node]
    # Python would write NaN and Infinity, which other readers of JSON refuse.
    return None if isinstance(node, float) and not math.isfinite(node) else node
