"""The tables of docs/findings.md about mixtures of experts and a hybrid."""

from __future__ import annotations

import pandas as pd

from analysis.statistics.tax import MAIN_ARMS
from analysis.table.names import optimizer as name
from bench.documents.cells import gap, loss, removed, rows_of, table
from bench.documents.published import of_sweep


def families() -> str:
    """One row per model and optimizer, the models by their parameters."""
    trials, found = of_sweep("families")
    points = trials.drop_duplicates("point").sort_values("num_parameters").set_index("point")
    rows = []
    for model in points["model"].unique():
        of_model = found[found["point"].map(points["model"]) == model]
        for optimizer, arms in rows_of(of_model).items():
            plain, left = (arms[arm] for arm in MAIN_ARMS)
            cells = [loss(plain), gap(plain), gap(left), removed(left), str(plain["n"])]
            rows.append([f"`{model}`", name(optimizer), *cells])
    heads = ["model", "optimizer", "sync loss", "gap of the delay", "gap with Error Feedback"]
    return table([*heads, "gap removed", "n"], rows)


def rates() -> str:
    """Mean final losses, one column per learning rate; the lowest of a row stands out."""
    trials, found = of_sweep("moe_learning_rate")
    points = trials.drop_duplicates("point").set_index("point")
    found = found[(found["arm"] == "delay") & (found["pairs"] > 0)]
    found = found.join(points[["optimizer.lr", "num_updates_asked"]], on="point")
    lines = []
    for (optimizer, updates), rows in found.groupby(["optimizer", "num_updates_asked"]):
        by_rate = rows.set_index("optimizer.lr").sort_index()
        for arm, losses in (("sync", by_rate["loss_sync"]), ("delayed", by_rate["loss"])):
            said = f"{name(str(optimizer))}, {updates:,} updates: {arm}"
            lines.append([said, *_lowest_stands_out(losses)])
    return table(["learning rate", *(f"{rate:g}" for rate in by_rate.index)], lines)


def _lowest_stands_out(losses: pd.Series) -> list[str]:
    return [f"**{one:.3f}**" if one == losses.min() else f"{one:.3f}" for one in losses]
