"""Validation loss over training: one panel per optimizer, one line per arm and seed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd

from analysis.figures.data.gap_over_training import with_gap
from analysis.figures.data.panels import OF_SEED, PANEL, SERIES
from analysis.figures.rows import shown_results
from analysis.table.load import validation_losses
from trainer.base.status import FINAL

COLUMNS = [*PANEL, *SERIES, *OF_SEED]
STAGES = "pipeline.num_stages"


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """One row per evaluation of every trial that is shown: COLUMNS, `update`, the `tokens` trained
    on until then, `val_loss`, and `gap_over_training.OF_GAP`."""
    shown = shown_results(trials, gaps)
    if shown.empty:
        return pd.DataFrame(columns=COLUMNS)
    curves = [validation_losses(folder) for folder in shown["folder"]]
    return with_gap(over_tokens(curves, shown), trials, "val_loss")


def of_optimizers(
    trials: pd.DataFrame, gaps: pd.DataFrame, optimizers: Sequence[str]
) -> pd.DataFrame:
    """Likewise, of these optimizers alone."""
    return data(trials[trials["optimizer"].isin(optimizers)], gaps)


def over_tokens(curves: Sequence[pd.DataFrame], shown: pd.DataFrame) -> pd.DataFrame:
    """The curves of the trials that are shown, one (`update` and one more column) for each row of
    `shown` in its order, below each other: COLUMNS, `update`, `tokens`, and the other column."""
    rows = pd.concat(curves, ignore_index=True)
    of_row = np.repeat(np.arange(len(shown)), [len(curve) for curve in curves])
    trials = shown[[*COLUMNS, "batch_size", "seq_len"]].iloc[of_row].reset_index(drop=True)
    tokens = (rows["update"] + 1) * trials["batch_size"] * trials["seq_len"]
    *_, last = rows.columns
    return trials[COLUMNS].assign(update=rows["update"], tokens=tokens, **{last: rows[last]})


def by_stages(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Likewise, with one panel per optimizer and number of stages P that an arm has among several.

    An arm that was run at one P alone, because it does not depend on it, is in each panel.
    """
    done = trials[trials["status"].isin(FINAL)]
    stages = done[STAGES] if STAGES in done else pd.Series(dtype=int)
    per_arm = stages.groupby(done["arm"]).transform("nunique")
    at = product(sorted(done["optimizer"].unique()), sorted(stages[per_arm > 1].unique()))
    panels = []
    for optimizer, count in at:
        has_count = (stages == count) | (per_arm == 1)
        panel = data(done[has_count & (done["optimizer"] == optimizer)], gaps)
        panels.append(panel.assign(panel=panel["panel"] + f", P = {count}"))
    return pd.concat(panels, ignore_index=True) if panels else data(done[:0], gaps)
