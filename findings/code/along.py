"""Tables of gaps along a key of the trials: momentum, batch size, length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from analysis import best
from analysis.statistics.text import tax_text
from analysis.table.names import REPORTED_ARMS
from analysis.table.names import optimizer as name
from bench.documents.cells import gap, loss, mean, table
from bench.documents.published import of_sweep


def momentum(sweep: str, scale: str) -> str:
    """One column per momentum."""
    trials, found = of_sweep(sweep, scale)
    return _along(trials, found, "optimizer.momentum", "momentum", keys=())


def stages(scale: str) -> str:
    """The gaps of 2BW and of original PipeDream by the number of stages, and their differences."""
    key = "pipeline.num_stages"
    trials = of_sweep("stages", scale).trials
    losses = trials.pivot_table(
        index="seed", columns=["optimizer", "arm", key], values="final_val_loss"
    )
    lines = []
    for optimizer in losses.columns.unique("optimizer"):
        sync, two, old = (losses[optimizer][arm] for arm in ("sync", "delay", "pipedream"))
        n = str(len(losses))
        lines.append([f"{name(optimizer)}: sync loss", *map("{:.3f}".format, sync.mean()), "", n])
        for said, of in (
            ("2BW: gap", two - sync),
            ("original PipeDream: gap", old - sync),
            ("PipeDream minus 2BW, paired", old - two),
        ):
            ends = of.iloc[:, -1] - of.iloc[:, 0]
            lines.append([f"{name(optimizer)}, {said}", *map(mean, columns(of)), mean(ends), n])
    values = [f"P = {value}" for value in losses.columns.unique(key)]
    return table(["", *values, "the most minus the fewest, paired", "n"], lines)


def columns(of: pd.DataFrame) -> Iterator[pd.Series]:
    """Its columns, in order."""
    return (of[column] for column in of)


def batch_size(scale: str = "tiny") -> str:
    """One column per batch size, at the learning rate that is best on sync there."""
    trials, found = of_sweep("batch_size", scale)
    sizes = found["point"].map(trials.drop_duplicates("point").set_index("point")["batch_size"])
    chosen = found.assign(size=sizes).sort_values("loss_sync", kind="stable")
    chosen = chosen.drop_duplicates(["optimizer", "size"])
    return _along(trials, chosen, "batch_size", "batch size", keys=("optimizer.lr",))


def horizon(sweep: str, scale: str, batch_size: int | None = None) -> str:
    """Gap and tax of each arm, one column per length; of one batch size or of all."""
    trials, found = of_sweep(sweep, scale)
    trials = _of_batch(trials, batch_size)
    found = found[found["point"].isin(trials["point"])]
    lengths = trials.drop_duplicates("point").set_index("point")["num_updates_asked"]
    found = found[found["pairs"] > 0].assign(length=found["point"].map(lengths))
    values = sorted(found["length"].unique())
    lines = []
    for (optimizer, arm), group in found.groupby(["optimizer", "arm"]):
        by_length = {row["length"]: row for row in group.to_dict("records")}
        at = [by_length[value] for value in values]
        said = f"{name(optimizer)}, {REPORTED_ARMS[str(arm)]}"
        lines.append([f"{said}: gap", *map(gap, at)])
        lines.append([f"{said}: token tax", *map(tax_text, at)])
    return table(["updates", *(f"{value:,}" for value in values)], lines)


def _of_batch(trials: pd.DataFrame, batch_size: int | None) -> pd.DataFrame:
    return trials if batch_size is None else trials[trials["batch_size"] == batch_size]


def shrinking(sweep: str, scale: str, later: int, batch_size: int | None = None) -> str:
    """How much larger each arm's gap is at the shortest length, and at `later`, than at the
    longest, paired by seed."""
    trials = _of_batch(of_sweep(sweep, scale).trials, batch_size)
    length = "num_updates_asked"
    losses = trials.pivot_table(
        index=["optimizer", "seed"], columns=["arm", length], values="final_val_loss"
    )
    shortest, longest = trials[length].min(), trials[length].max()
    lines = []
    for optimizer, of_seeds in losses.groupby("optimizer"):
        for arm in losses.columns.unique("arm").drop("sync"):
            of = of_seeds[arm] - of_seeds["sync"]
            apart = [mean(of[first] - of[longest]) for first in (shortest, later)]
            lines.append([f"{name(optimizer)}, {REPORTED_ARMS[arm]}", *apart, str(len(of))])
    heads = [f"{first:,} minus {longest:,}" for first in (shortest, later)]
    return table(["gap, paired by seed", *heads, "n"], lines)


def _along(
    trials: pd.DataFrame, found: pd.DataFrame, key: str, title: str, keys: Sequence[str]
) -> str:
    """Rows of each optimizer: other `keys` of its points, sync's loss, and the gap of the delay."""
    points = trials.drop_duplicates("point").set_index("point")[[key, *keys]]
    rows = found[(found["arm"] == "delay") & (found["pairs"] > 0)].join(points, on="point")
    values = sorted(rows[key].unique())
    lines = []
    for optimizer, group in rows.groupby("optimizer"):
        by_value = {row[key]: row for row in group.to_dict("records")}
        at = [by_value[value] for value in values]
        n = " and ".join(dict.fromkeys(str(row["n"]) for row in at))
        for other in keys:
            said = other.rpartition(".")[2]
            lines.append([f"{name(optimizer)}: {said}", *(f"{row[other]:g}" for row in at), n])
        lines.append([f"{name(optimizer)}: sync loss", *map(loss, at), n])
        lines.append([f"{name(optimizer)}: gap of the delay", *map(gap, at), n])
    return table([title, *(f"{value:g}" for value in values), "n"], lines)


def best_points(scale: str = "tiny") -> str:
    """Each arm at its own best point of the grid."""
    found = best(of_sweep("batch_size", scale).trials)
    return table(
        ["optimizer", "best delay minus best sync", "n", "sync's point", "the delay's point"],
        [
            [name(row["optimizer"]), gap(row), str(row["n"]), row["setting_sync"], row["setting"]]
            for row in found.to_dict("records")
        ],
    )
