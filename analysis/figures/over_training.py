"""Losses over training and the gap while it grows: data that `curves` draws."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from analysis.figures.rows import OF_SEED, PANEL, SERIES, best_points
from analysis.statistics.intervals import mean_intervals
from analysis.statistics.pairs import pairs
from analysis.table.load import training_losses, validation_losses
from analysis.table.tasks import updates_asked
from trainer.base.status import FINAL, Status

COLUMNS = [*PANEL, *SERIES, *OF_SEED]
OF_GAP = ["gap", "n", "mean", "low", "high"]
"""The gap of a trial at an update, and the mean of its series there with its 95 % interval."""
STAGES = "pipeline.num_stages"
POINTS = 100
"""A curve of training losses has about that many points: each is the mean of a hundredth of the
run."""


def validation(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per evaluation of every trial of the best points: one panel per optimizer.

    The columns are COLUMNS, `update`, the `tokens` trained on until then, `val_loss`, and OF_GAP.
    """
    shown = best_points(trials, gaps)
    if shown.empty:
        return pd.DataFrame(columns=COLUMNS)
    curves = [validation_losses(folder) for folder in shown["folder"]]
    return with_gap(over_tokens(curves, shown), trials, "val_loss")


def validation_of(
    trials: pd.DataFrame, gaps: pd.DataFrame, optimizers: Sequence[str]
) -> pd.DataFrame:
    """Return `validation` of these optimizers alone."""
    return validation(trials[trials["optimizer"].isin(optimizers)], gaps)


def validation_by_stages(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return `validation` with one panel per optimizer and number of stages P (figure 6).

    P is a number that some arm has among several. An arm that was run at one P alone, because it
    does not depend on it, is in each panel.
    """
    done = trials[trials["status"].isin(FINAL)]
    stages = done[STAGES] if STAGES in done else pd.Series(dtype=int)
    per_arm = stages.groupby(done["arm"]).transform("nunique")
    at = product(sorted(done["optimizer"].unique()), sorted(stages[per_arm > 1].unique()))
    panels = []
    for optimizer, count in at:
        has_count = (stages == count) | (per_arm == 1)
        panel = validation(done[has_count & (done["optimizer"] == optimizer)], gaps)
        panels.append(panel.assign(panel=panel["panel"] + f", P = {count}"))
    return pd.concat(panels, ignore_index=True) if panels else validation(done[:0], gaps)


def training(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per trial of the best points and POINTS-th part of its run (figure 19).

    The columns are COLUMNS, the last `update` of the part, the `tokens` until then, the mean
    `train_loss`, and OF_GAP. Every batch is in some part.
    """
    shown = best_points(trials, gaps)
    if shown.empty:
        return pd.DataFrame(columns=COLUMNS)
    lengths = (updates_asked(shown) / POINTS).round().clip(lower=1)
    curves = [
        _in_parts(folder, int(length))
        for folder, length in zip(shown["folder"], lengths, strict=True)
    ]
    return with_gap(over_tokens(curves, shown), trials, "train_loss")


def _in_parts(folder: str, length: int) -> pd.DataFrame:
    """Return means of `length` updates each; a part that the run did not finish is left out."""
    losses = training_losses(folder)
    part = losses["update"] // length
    losses = losses[part.groupby(part).transform("count") == length]
    parts = losses.groupby(losses["update"] // length)
    return parts.agg({"update": "max", "train_loss": "mean"}).reset_index(drop=True)


def over_tokens(curves: Sequence[pd.DataFrame], shown: pd.DataFrame) -> pd.DataFrame:
    """Return the curves below each other: COLUMNS, `update`, `tokens`, and the curves' own column.

    There is one curve (`update` and one more column) for each row of `shown`, in its order.
    """
    rows = pd.concat(curves, ignore_index=True)
    of_row = np.repeat(np.arange(len(shown)), [len(curve) for curve in curves])
    trials = shown[[*COLUMNS, "batch_size", "seq_len"]].iloc[of_row].reset_index(drop=True)
    tokens = (rows["update"] + 1) * trials["batch_size"] * trials["seq_len"]
    *_, last = rows.columns
    return trials[COLUMNS].assign(update=rows["update"], tokens=tokens, **{last: rows[last]})


def with_gap(curves: pd.DataFrame, trials: pd.DataFrame, loss: str) -> pd.DataFrame:
    """Return `curves` with OF_GAP of their column `loss`.

    OF_GAP is missing for sync, and without a partner that completed. Both trials of a pair saw the
    same batches, whose noise cancels. The mean ends where the first of its trials does, and is
    missing before all of them have a value.
    """
    paired = pairs(trials)
    paired = paired[paired["status_sync"] == Status.COMPLETED]
    partner = curves["trial_id"].map(paired.set_index("trial_id")["trial_id_sync"])
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
    mean = gaps.mean(axis=1).to_numpy()
    columns = {"update": gaps.index, "n": gaps.shape[1], "mean": mean, "low": low, "high": high}
    return pd.DataFrame(columns)
