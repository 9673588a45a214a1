"""The gap against every number that was swept: a panel an optimizer, a line an arm."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from analysis.figures.paired_seeds import COLUMNS, IN_PANEL, paired_seeds
from analysis.points import in_words, varied


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """A row a seed of each panel, see `paired_seeds.COLUMNS`; empty if no number was swept.

    A panel holds the points that differ in its key alone, and in keys that follow from it: a tuned
    learning rate is named in the title, the number of updates that goes with a batch size is not.
    """
    found = paired_seeds(trials, gaps)
    panels = [
        found.merge(panel, left_on="point", right_index=True).sort_values(IN_PANEL)
        for optimizer, points in varied(trials).items()
        for panel in _panels(optimizer, points[points.index.isin(found["point"])])
    ]
    return pd.concat(panels, ignore_index=True)[COLUMNS] if panels else found[:0]


def _panels(optimizer: str, points: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """For each panel its points (the index) with `panel` (the title), `key` and `value`."""
    keys = _distinct(points)
    for key in keys:
        if not is_numeric_dtype(points[key]) or is_bool_dtype(points[key]):
            continue
        others = [other for other in keys if other != key]
        follow = [other for other in others if _determines(points, key, other)]
        fixed = [other for other in others if other not in follow]
        for _, group in points.groupby(fixed, dropna=False) if fixed else [((), points)]:
            shown = group.dropna(subset=key)
            if shown[key].nunique() > 1:
                title = [optimizer, in_words(group[fixed].iloc[0])]
                title += [f"with {other} moving along" for other in follow]
                title += [f"without {key}: not shown"] if len(shown) < len(group) else []
                named = "\n".join(line for line in title if line)
                values = shown[key].astype(float)
                yield pd.DataFrame({"panel": named, "key": key, "value": values})


def _distinct(points: pd.DataFrame) -> list[str]:
    """The keys that differ, without those that say the same of every point as one before."""
    kept: dict[str, list[int]] = {}
    for key in map(str, points):
        codes = points[key].factorize(use_na_sentinel=False)[0].tolist()
        if codes not in kept.values() and len(set(codes)) > 1:
            kept[key] = codes
    return [*kept]


def _determines(points: pd.DataFrame, key: str, other: str) -> bool:
    return bool((points.groupby(key, dropna=False)[other].nunique(dropna=False) == 1).all())
