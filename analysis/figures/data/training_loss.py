"""Training loss over training (figure 19): every batch is in it, in means of some updates each."""

from __future__ import annotations

import pandas as pd

from analysis.figures.data.gap_over_training import with_gap
from analysis.figures.rows import shown_results
from analysis.figures.over_training import COLUMNS, over_tokens
from analysis.table.load import training_losses
from analysis.table.tasks import updates_asked

POINTS = 100
"""A curve has about that many points: each is the mean of a hundredth of the run."""


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """One row per trial that is shown and POINTS-th part of its run: COLUMNS, the last `update` of
    the part, the `tokens` until then, the mean `train_loss`, and OF_GAP."""
    shown = shown_results(trials, gaps)
    if shown.empty:
        return pd.DataFrame(columns=COLUMNS)
    lengths = (updates_asked(shown) / POINTS).round().clip(lower=1)
    curves = [
        _in_parts(folder, int(length))
        for folder, length in zip(shown["folder"], lengths, strict=True)
    ]
    return with_gap(over_tokens(curves, shown), trials, "train_loss")


def _in_parts(folder: str, length: int) -> pd.DataFrame:
    """Means of `length` updates each; a part that the run did not finish is left out."""
    losses = training_losses(folder)
    part = losses["update"] // length
    losses = losses[part.groupby(part).transform("count") == length]
    parts = losses.groupby(losses["update"] // length)
    return parts.agg({"update": "max", "train_loss": "mean"}).reset_index(drop=True)
