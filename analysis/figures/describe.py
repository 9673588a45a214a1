"""A figure in words, for readers who do not see it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.table.names import signed

MOST_MEANS = 40
"""More numbers than that are not read out: the CSV has all."""
PLACES = ("panel", "subtitle", "quantity", "group", "row", "series", "value")
"""Columns that say what a mean is of."""


def described(title: str, caption: Sequence[str], data: pd.DataFrame) -> str:
    """Title, what is shown, the means with their intervals unless they are many, and how to read
    the figure."""
    parts = [title, *_shown(data)]
    if "mean" in data and "update" not in data:
        means = data.drop_duplicates([name for name in PLACES if name in data])
        means = means[means["mean"].notna()]
        if len(means) <= MOST_MEANS:
            parts.append("; ".join(map(_mean, means.to_dict("records"))))
    return ". ".join(filter(None, [*parts, *caption])) + "."


def _shown(data: pd.DataFrame) -> Iterator[str]:
    for column, words in (("panel", "Panels"), ("series", "Shown")):
        found = [*dict.fromkeys(data[column].dropna())] if column in data else []
        if any(found):
            yield f"{words}: {', '.join(map(str, found))}"


def _mean(row: Mapping[Any, Any]) -> str:
    places = [row[name] for name in PLACES if name in row and name != "subtitle"]
    place = " ".join(str(part) for part in places if part != "" and not _is_missing(part))
    mean, low, high = (float(str(row[name])) for name in ("mean", "low", "high"))
    interval = "" if _is_missing(low) else f" [{signed(low)}, {signed(high)}]"
    return f"{place} {signed(mean)}{interval}"


def _is_missing(part: Any) -> bool:
    return bool(pd.isna(part))
