"""The gap against every number that was swept: one panel per optimizer, one line per arm."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from analysis.figures.data.paired_seeds import COLUMNS, IN_PANEL, paired_seeds
from analysis.figures.data.panels import lines
from analysis.figures.swept import distinct, groups
from analysis.table import names
from analysis.table.points import varied


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """One row per seed of each panel, see `paired_seeds.COLUMNS`; empty if no number was swept.

    A panel holds the points that differ in its key alone, and in keys that follow from it: a tuned
    learning rate is named in the subtitle, the number of updates that goes with a batch size is
    not.
    """
    found = paired_seeds(trials, gaps)
    panels = [
        found.merge(panel, left_on="point", right_index=True)
        .assign(panel=names.optimizer(optimizer))
        .sort_values(IN_PANEL)
        for optimizer, points in varied(trials).items()
        for panel in _panels(points[points.index.isin(found["point"])])
    ]
    if not panels:
        return pd.DataFrame(columns=COLUMNS)
    return pd.concat(panels, ignore_index=True).reindex(columns=COLUMNS)


def _panels(points: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """For each panel its points (the index) with `subtitle`, `key` and `value`."""
    for key in distinct(points):
        if not is_numeric_dtype(points[key]) or is_bool_dtype(points[key]):
            continue
        for subtitle, group in groups(points, [key]):
            shown = group.dropna(subset=key)
            if shown[key].nunique() > 1:
                without = f"without {names.key(key)}: not shown" if len(shown) < len(group) else ""
                values = shown[key].astype(float)
                title = lines([subtitle, without])
                yield pd.DataFrame({"subtitle": title, "key": key, "value": values})
