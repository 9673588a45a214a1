"""Gaps of all optimizers in one panel: against momentum (figure 4), against λ (figure 15)."""

from __future__ import annotations

import pandas as pd

from analysis.figures.data import gap_by_coefficient, gap_by_key
from analysis.table import names


def by_momentum(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """One panel per arm, with rows of `paired_seeds.COLUMNS` whose series are optimizers."""
    found = gap_by_key.data(trials, gaps)
    found = found[found["key"] == "optimizer.momentum"]
    return _with_optimizers(found, found["series"])


def by_coefficient(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Likewise, with one panel per kind of Error Feedback; the plain delay has coefficient 0."""
    found = gap_by_coefficient.data(trials, gaps, correction="error_feedback")
    plain = found["value"].isna()
    kinds = [
        _with_optimizers(of_kind.fillna({"value": 0.0}), kind)
        for kind in found.loc[~plain, "series"].unique()
        for of_kind in [found[plain | (found["series"] == kind)]]
    ]
    return pd.concat(kinds, ignore_index=True) if kinds else found


def _with_optimizers(found: pd.DataFrame, panel: pd.Series | str) -> pd.DataFrame:
    """`subtitle` stays: what the points of a panel have in common beside their optimizer."""
    return found.assign(panel=panel, series=found["optimizer"].map(names.optimizer))
