"""Keeps a page small: a specification with too many points is drawn with some of them."""

from __future__ import annotations

from typing import Any

MOST_POINTS = 3_000
"""Rows of one data set of a figure on the page; its CSV, SVG and PNG have all."""


def thin(specs: list[dict[str, Any]]) -> tuple[int, int]:
    """Leaves at most MOST_POINTS rows in the data sets of a figure's panels together, evenly
    spaced, the first and the last among them. Means and intervals are rows of their own, made of
    all points. Returns how many rows there are now, and were."""
    datasets = [spec["datasets"] for spec in specs]
    sizes = {name: len(rows) for of_spec in datasets for name, rows in of_spec.items()}
    before = sum(sizes.values())
    share = min(1.0, MOST_POINTS / max(1, before))
    for of_spec in datasets:
        for name, rows in of_spec.items():
            of_spec[name] = _spaced(rows, max(2, int(share * len(rows))))
    return sum(len(rows) for of_spec in datasets for rows in of_spec.values()), before


def _spaced(rows: list[Any], most: int) -> list[Any]:
    if len(rows) <= most:
        return rows
    step = (len(rows) - 1) / (most - 1)
    return [rows[round(index * step)] for index in range(most)]
