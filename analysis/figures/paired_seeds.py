"""The gap of every seed, with the mean of its arm beside it: what figures of gaps are made of."""

from __future__ import annotations

import pandas as pd

from analysis.pairs import VARIANT, pairs

ROW = ["optimizer", "point", "arm", *VARIANT]
OF_GAP = ["n", "mean", "low", "high", "diverged", "pairs"]
COLUMNS = [
    *["panel", "key", "value", "series", "seed", "gap", "status", "trial_id"],
    *OF_GAP,
]
"""A figure of gaps against `value` of `key`: a row a seed; a reference line has no value."""
IN_PANEL = ["series", "value", "seed"]
"""Order of the rows of a panel."""


def paired_seeds(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """A row a trial whose sync partner completed: `gap` (NaN if it diverged), `series` (its arm,
    with stages and microbatches where the arm has several at its point), and the row of `gaps`
    (there `mean` is the gap)."""
    if trials.empty:
        return pd.DataFrame(columns=list(dict.fromkeys([*COLUMNS, *ROW, "base_arm"])))
    found = pairs(trials)
    found = found[found["status_sync"] == "completed"].reset_index(drop=True)
    found["series"] = with_variant(found, found["arm"])
    means = gaps.rename(columns={"gap": "mean"})[[*ROW, *OF_GAP]]
    return found.merge(means, on=ROW, how="left")


def with_variant(found: pd.DataFrame, names: pd.Series) -> list[str]:
    """`names`, with stages and microbatches where a point has a name with several."""
    variants = found.groupby(["point", names.rename("name")])[VARIANT].nunique().max(axis=1)
    rows = found.assign(name=names)[["point", "name", *VARIANT]].itertuples(index=False)
    return [
        name if variants[point, name] == 1 else f"{name} p={p} m={m}" for point, name, p, m in rows
    ]
