"""Batch size × learning rate: the loss of every arm and its gap (figure 13)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.figures.data.means import mean_of
from analysis.figures.data.panels import MEAN, PANEL
from analysis.figures.swept import along
from analysis.statistics.pairs import results
from analysis.table import names

DOWN, ACROSS = "batch_size", "optimizer.lr"
MAP = [*PANEL, "quantity", "arm"]
"""Columns that tell maps apart."""
COLUMNS = [*MAP, DOWN, ACROSS, *MEAN, "series", "best"]


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """One row per cell: `quantity` is the `loss` of an arm or its `gap`, in nats per token.

    `pairs` counts trials (or pairs whose sync completed), of which `diverged` are not in the mean.
    `best` marks the lowest loss of each arm where nothing diverged.
    """
    points = along(trials, [DOWN, ACROSS]).drop_duplicates([*PANEL, DOWN, ACROSS])
    done = results(trials)
    cells = [
        {**at, **cell}
        for point, at in points[[*PANEL, DOWN, ACROSS]].to_dict("index").items()
        for cell in _cells(done[done["point"] == point], gaps[gaps["point"] == point])
    ]
    table = pd.DataFrame(cells, columns=COLUMNS[:-2])
    table["series"] = table["arm"].map(names.arms(trials))
    whole = table.loc[(table["diverged"] == 0) & (table["quantity"] == "loss")]
    best = whole.groupby(MAP)["mean"].idxmin().dropna()
    table = table.assign(
        best=table.index.isin(best),
        is_gap=table["quantity"] == "gap",
        is_arm=table["arm"] != "sync",
    )
    order = [*PANEL, "is_gap", "is_arm", "arm", DOWN, ACROSS]
    return table.sort_values(order)[COLUMNS].reset_index(drop=True)


def _cells(done: pd.DataFrame, gaps: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for arm, of_arm in done.groupby("arm"):
        yield {"quantity": "loss", "arm": arm, **mean_of(of_arm["final_val_loss"])}
    for row in gaps[gaps["pairs"] > 0].rename(columns={"gap": "mean"}).to_dict("records"):
        yield {"quantity": "gap", "arm": row["arm"], **{name: row[name] for name in MEAN}}
