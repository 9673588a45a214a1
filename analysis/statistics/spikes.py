"""The spike of the training loss where the delay is switched on after a synchronous start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.intervals import mean_interval
from analysis.points import settings
from analysis.store import config_of, training_losses
from analysis.tasks import updates_asked

WINDOW = 10
"""Updates of the running mean: a batch's loss is too noisy to tell a spike from."""
BOOTSTRAP_SEED = 0
START = "pipeline.synchronous_start"
ARM = ["optimizer", "point", "arm"]
OF_ARM = ["n", "mean_height", "low", "high", "recovered"]
COLUMNS = [*ARM, "setting", "seed", "trial_id", "status", "switch", "height", "recovery", *OF_ARM]


def spikes(trials: pd.DataFrame) -> pd.DataFrame:
    """A row a trial with a synchronous start, from `load`'s table.

    `switch`: the first update with a delay. `height`, in nats per token: the largest mean of
    train_loss over WINDOW updates after the switch minus that over the WINDOW updates before it;
    missing if there are fewer. `recovery`: updates from the switch to the end of the first window,
    from the highest one on, whose mean is no more than that before the switch; 0 without a spike,
    missing if there is no such window. Beside them those of the arm at its point: `n` heights,
    their mean with its 95 % interval, and how many of the n `recovered`.
    """
    started = trials[trials[START] > 0] if START in trials else trials[:0]
    started = started[started["status"].isin(["completed", "diverged"])]
    if len(started):
        started = started.assign(asked=updates_asked(started))
    words = settings(trials)
    rows = [
        {**trial, "setting": words[trial["point"]], **_spike(trial)}
        for trial in started.to_dict("records")
    ]
    table = pd.DataFrame(rows, columns=[name for name in COLUMNS if name not in OF_ARM])
    of_arms = [
        {**dict(zip(ARM, key, strict=True)), **_of_arm(group)} for key, group in table.groupby(ARM)
    ]
    return table.merge(pd.DataFrame(of_arms, columns=[*ARM, *OF_ARM]), on=ARM)[COLUMNS]


def _spike(trial: Mapping[Any, Any]) -> dict[str, float]:
    switch = _switch(trial)
    losses = training_losses(trial["folder"]).set_index("update")["train_loss"]
    before = losses.loc[switch - WINDOW : switch - 1].to_numpy()
    after = losses.loc[switch:].to_numpy()
    height, recovery = measure(before, after)
    return {"switch": switch, "height": height, "recovery": recovery}


def measure(before: NDArray[np.float64], after: NDArray[np.float64]) -> tuple[float, float]:
    """Height and recovery, from the losses of the updates just before the switch and after it."""
    if len(before) < WINDOW or len(after) < WINDOW:
        return np.nan, np.nan
    level = before[-WINDOW:].mean()
    means = np.lib.stride_tricks.sliding_window_view(after, WINDOW).mean(axis=1)
    if np.isnan(level) or np.isnan(means).all():
        return np.nan, np.nan
    peak = int(np.nanargmax(means))
    height = float(means[peak] - level)
    if height <= 0:
        return height, 0.0
    back = np.flatnonzero(means[peak:] <= level)
    return height, float(peak + back[0] + WINDOW) if len(back) else np.nan


def _switch(trial: Mapping[Any, Any]) -> int:
    """The first update with a delay: an int counts updates, a float is a share of all of them."""
    start = config_of(trial["folder"])["pipeline"]["synchronous_start"]
    return start if isinstance(start, int) else round(start * trial["asked"])


def _of_arm(group: pd.DataFrame) -> dict[str, float]:
    heights = group["height"].dropna().to_numpy(dtype=float)
    low, high = mean_interval(heights, np.random.default_rng(BOOTSTRAP_SEED))
    return {
        "n": len(heights),
        "mean_height": heights.mean() if len(heights) else np.nan,
        "low": low,
        "high": high,
        "recovered": int(group["recovery"].notna().sum()),
    }
