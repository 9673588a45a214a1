"""The training loss where the delay is switched on, by β2 (figure 20)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.figures.data.measured import AFTER, BEFORE
from analysis.figures.data.panels import OF_SEED, PANEL
from analysis.figures.swept import along
from analysis.statistics.spikes import WINDOW, spikes
from analysis.table import names
from analysis.table.load import training_losses

KEY = "optimizer.variance_decay"
COLUMNS = [
    *(*PANEL, KEY, "series", "arm", *OF_SEED, "height", "n", "mean_height", "low", "high"),
    *("update", "from_switch", "train_loss", "running_mean"),
]


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """One row per update around the switch, of every trial with a synchronous start whose point
    differs from others in β2; `height` is that of `spikes.spikes`, beside those of its arm."""
    points = along(trials, [KEY])[[*PANEL, KEY]]
    started = spikes(trials).merge(points, left_on="point", right_index=True)
    started = started.sort_values([*PANEL, KEY, "arm", "seed"])
    words, several = names.arms(trials), started["arm"].nunique() > 1
    started["series"] = [
        (f"{words[arm]}, " if several else "") + f"{names.key(KEY)} = {value:g}"
        for arm, value in started[["arm", KEY]].to_numpy()
    ]
    folders = trials.set_index("trial_id")["folder"]
    rows = [_around(folders[trial["trial_id"]], trial) for trial in started.to_dict("records")]
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=COLUMNS)


def _around(folder: str, trial: Mapping[Any, Any]) -> pd.DataFrame:
    losses = training_losses(folder)
    losses["from_switch"] = losses["update"] - trial["switch"]
    losses["running_mean"] = losses["train_loss"].rolling(WINDOW).mean()
    share = losses["from_switch"] / len(losses)
    of_trial = {name: trial[name] for name in COLUMNS if name in trial}
    return losses[share.between(-BEFORE, AFTER)].assign(**of_trial)[COLUMNS]
