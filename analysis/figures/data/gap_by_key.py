"""The gap against every number that was swept: a panel an optimizer, a line an arm."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from analysis.figures.paired_seeds import COLUMNS, IN_PANEL, paired_seeds
from analysis.figures.swept import distinct, split
from analysis.points import varied


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
    if not panels:
        return pd.DataFrame(columns=COLUMNS)
    return pd.concat(panels, ignore_index=True).reindex(columns=COLUMNS)


def _panels(optimizer: str, points: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """For each panel its points (the index) with `panel` (the title), `key` and `value`."""
    for key in distinct(points):
        if not is_numeric_dtype(points[key]) or is_bool_dtype(points[key]):
            continue
        for title, group in split(optimizer, points, [key]):
            shown = group.dropna(subset=key)
            if shown[key].nunique() > 1:
                without = f"\nwithout {key}: not shown" if len(shown) < len(group) else ""
                values = shown[key].astype(float)
                yield pd.DataFrame({"panel": title + without, "key": key, "value": values})
