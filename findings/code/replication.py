"""A replication of the main question at `tiny` beside the seeds that were run first."""

from __future__ import annotations

import pandas as pd
from scipy import stats

from analysis.statistics.intervals import CONFIDENCE
from analysis.statistics.tax import MAIN_ARMS
from analysis.table.names import REPORTED_ARMS
from analysis.table.names import optimizer as name
from bench.documents.cells import Row, gap, table
from bench.documents.published import LONG, view


def replication() -> str:
    """Gaps of the first seeds, of the others and of all, and the standard error of the last."""
    first, other = LONG["shared_rate"], LONG["main"]
    before, again, both = (_by_arm(view(*of).gaps) for of in ((first,), (other,), (first, other)))
    rows = [
        [
            *(name(optimizer), REPORTED_ARMS[arm]),
            *(f"{gap(of[optimizer, arm])} (n={of[optimizer, arm]['n']})" for of in (before, again)),
            *(gap(both[optimizer, arm]), f"{_standard_error(both[optimizer, arm]):.4f}"),
        ]
        for optimizer, arm in again
    ]
    heads = ["optimizer", "arm", "the first seeds", "the others", "all", "standard error of all"]
    return table(heads, rows)


def _by_arm(gaps: pd.DataFrame) -> dict[tuple[str, str], Row]:
    shown = gaps[gaps["arm"].isin(MAIN_ARMS) & (gaps["pairs"] > 0)]
    return {(row["optimizer"], row["arm"]): row for row in shown.to_dict("records")}


def _standard_error(row: Row) -> float:
    """Of the mean, from Student's interval."""
    half = (row["high"] - row["low"]) / 2
    return float(half / stats.t.ppf((1 + CONFIDENCE) / 2, row["n"] - 1))
