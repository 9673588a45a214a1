"""Means over seeds with their intervals: what stands behind a point or a band of a figure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.figures.data.panels import MEAN
from analysis.statistics.intervals import mean_interval


def mean_of(values: pd.Series) -> dict[str, float]:
    """MEAN of `values`; those of trials that diverged are missing, and counted."""
    known = values.dropna().to_numpy(dtype=float)
    low, high = mean_interval(known)
    mean = known.mean() if len(known) else np.nan
    counts = len(known), mean, low, high, len(values) - len(known), len(values)
    return dict(zip(MEAN, counts, strict=True))


def with_means(table: pd.DataFrame, column: str, keys: Sequence[str]) -> pd.DataFrame:
    """`table`, with MEAN of its `column` over the rows that have the same `keys`."""
    if table.empty:
        return table.reindex(columns=[*dict.fromkeys([*table, *MEAN])])
    means = [
        {**dict(zip(keys, key, strict=True)), **mean_of(values)}
        for key, values in table.groupby([*keys], sort=False)[column]
    ]
    return table.merge(pd.DataFrame(means, columns=[*keys, *MEAN]), on=[*keys])
