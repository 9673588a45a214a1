"""The gap while it grows: at every update at which both trials of a pair have a loss."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.figures.data.panels import PANEL
from analysis.statistics.intervals import mean_intervals
from analysis.statistics.pairs import pairs
from trainer.base.status import Status

OF_GAP = ["gap", "n", "mean", "low", "high"]
"""The gap of a trial at an update, and the mean of its series there with its 95 % interval."""


def with_gap(curves: pd.DataFrame, trials: pd.DataFrame, loss: str) -> pd.DataFrame:
    """Rows of curves with OF_GAP of their column `loss`; missing of sync, and without a partner
    that completed.

    Both trials of a pair saw the same batches, whose noise cancels. The mean ends where the first
    of its trials does, and is missing before a value of all of them.
    """
    found = pairs(trials)
    found = found[found["status_sync"] == Status.COMPLETED]
    partner = curves["trial_id"].map(found.set_index("trial_id")["trial_id_sync"])
    losses = curves.drop_duplicates(["trial_id", "update"]).set_index(["trial_id", "update"])[loss]
    of_partner = losses.reindex(pd.MultiIndex.from_arrays([partner, curves["update"]]))
    table = curves.assign(gap=curves[loss].to_numpy() - of_partner.to_numpy())
    means = []
    for key, of_series in table[partner.notna()].groupby([*PANEL, "series"]):
        place: dict[str, Any] = dict(zip([*PANEL, "series"], key, strict=True))
        means.append(_means(of_series).assign(**place))
    if not means:
        return table.reindex(columns=[*curves, *OF_GAP])
    return table.merge(pd.concat(means), on=[*PANEL, "series", "update"], how="left")


def _means(of_series: pd.DataFrame) -> pd.DataFrame:
    gaps = of_series.pivot_table(
        index="update", columns="trial_id", values="gap", dropna=False
    ).dropna()
    low, high = mean_intervals(gaps.to_numpy())
    return pd.DataFrame(
        {
            "update": gaps.index,
            "n": gaps.shape[1],
            "mean": gaps.mean(axis=1).to_numpy(),
            "low": low,
            "high": high,
        }
    )
