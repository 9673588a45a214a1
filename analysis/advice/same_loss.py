"""What a gap costs in updates: interpolated between what was measured, never beyond it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from analysis.store import validation_losses

ByUpdates = Mapping[float, float]
"""Losses by the number of updates done, or by its logarithm."""


def mean_curve(folders: Iterable[str]) -> dict[float, float]:
    """Validation losses over a run, mean over its seeds, where every seed was evaluated."""
    runs = [validation_losses(folder).set_index("update")["val_loss"] for folder in folders]
    if not runs:
        return {}
    mean = pd.concat(runs, axis=1).mean(axis=1, skipna=False).dropna()
    return {float(str(update)) + 1: float(loss) for update, loss in mean.items()}


def updates_to(losses: ByUpdates, level: float) -> float:
    """Updates after which `losses` first are no higher than `level`; linear between two of them.

    The first one's where they are from there on; NaN if they never are.
    """
    before: tuple[float, float] | None = None
    for update, loss in sorted(losses.items()):
        if loss <= level:
            if before is None:
                return update
            share = (before[1] - level) / (before[1] - loss)
            return before[0] + share * (update - before[0])
        before = update, loss
    return np.nan


def length_to(finals: ByUpdates, level: float) -> float:
    """Length of the run that ends at `level`, by the final losses of runs by their length; as
    `updates_to`, but linear in the logarithm of the length."""
    logarithmic = {float(np.log(length)): loss for length, loss in finals.items()}
    return float(np.exp(updates_to(logarithmic, level)))


def loss_after(finals: ByUpdates, updates: float) -> float:
    """Final loss of a run of so many updates, likewise; NaN beyond the runs that there are."""
    lengths = sorted(finals)
    values = [finals[length] for length in lengths]
    return float(np.interp(np.log(updates), np.log(lengths), values, left=np.nan, right=np.nan))
