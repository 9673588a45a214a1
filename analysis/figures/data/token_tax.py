"""Every token tax of some trials, beside those that others reported."""

from __future__ import annotations

import pandas as pd

from analysis.figures.data.panels import PANEL
from analysis.statistics.reported import reported_taxes
from analysis.statistics.tax import best_taxes
from analysis.table import names

AS_MEAN = {"tax": "mean", "tax_low": "low", "tax_high": "high", "tax_n": "n"}
"""The columns of a tax → those of any mean."""
COLUMNS = [
    *(*PANEL, "row", "who", "optimizer", "series", "arm", "setting", "tax_from"),
    *AS_MEAN.values(),
]
OURS = "these trials"


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """One row per optimizer and arm, at its `best_taxes`, and one row per number of others, from
    the smallest tax to the largest; empty without a tax of these trials.

    `row`: what it is, in words. `mean`, `low`, `high`: the tax and its interval, over `n` seeds.
    """
    own = own_taxes(gaps)
    if own.empty:
        return pd.DataFrame(columns=COLUMNS)
    others = reported_taxes().rename(columns=AS_MEAN)
    others["series"] = others["arm"].map(names.REPORTED_ARMS)
    table = pd.concat([own.assign(who=OURS), others])
    theirs = (" (" + table["who"] + ")").where(table["who"] != OURS, "")
    table["row"] = table["optimizer"].map(names.optimizer) + ", " + table["series"] + theirs
    table = table.assign(panel="token tax", subtitle="").sort_values("mean", kind="stable")
    return table[COLUMNS].reset_index(drop=True)


def own_taxes(gaps: pd.DataFrame) -> pd.DataFrame:
    """`best_taxes` with the columns of any mean, and in `series` the name of the arm."""
    found = best_taxes(gaps)
    found["series"] = found["arm"].map(names.arms(gaps))
    kept = ["optimizer", "series", "arm", "setting", "tax_from", *AS_MEAN]
    return found[kept].rename(columns=AS_MEAN)
