"""What a run measures of its delay, beside the final loss: the spike of the training loss where a
synchronous start ends and the delay is switched on (figures 3 and 20), and how near late updates
are to the fresh ones (figures 17 and 18)."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipegap.analysis.statistics.intervals import mean_with_ends
from pipegap.analysis.statistics.pairs import pairs
from pipegap.analysis.table.metrics import config_of, metrics, training_losses
from pipegap.analysis.table.points import settings
from pipegap.analysis.table.tasks import updates_asked
from pipegap.trainer.base.status import FINAL, Status

WINDOW = 10
"""Updates of a mean: the loss of one batch is too noisy to show a spike. The window of the height
begins at the switch and is fixed: the largest window of a run would be a spike of any noise."""
ARM = ["optimizer", "point", "arm"]
OF_ARM = ["n", "mean_height", "low", "high", "recovered"]
COLUMNS = [*ARM, "setting", "seed", "trial_id", "status", "switch", "height", "recovery", *OF_ARM]
MEASURES = {"cosine": "update_cosine", "error": "update_error"}
"""Column of `lateness` → the diagnostic of the whole model that it is a mean of."""
LATENESS = [*ARM, "setting", "seed", "trial_id", "measured", *MEASURES]
COMPARED = ["arm", "setting", "optimizer", "other", "difference", "low", "high", "n"]


def spikes(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per trial with a synchronous start, from `load`'s table.

    `switch`: the first update with a delay. `height`, in nats per token: the mean of train_loss
    over the WINDOW updates from the switch on, minus that of the sync trial of the same point and
    seed over the same updates: both saw the same batches, whose noise cancels. Missing without
    such a trial, or if there are fewer updates. `recovery`: updates from the switch to the end of
    the first window whose mean is no more than that of the trial itself before the switch; 0
    without a spike, missing if there is no such window. Beside these come numbers of the arm at its
    point: `n` heights, their mean with its 95 % interval, and how many of the n `recovered`.
    Raises and warns as `pairs.pairs` does.
    """
    started = trials[trials["start"] > 0]
    started = started[started["status"].isin(FINAL)]
    if len(started):
        folders = trials.set_index("trial_id")["folder"]
        partner = pairs(trials).set_index("trial_id")["trial_id_sync"]
        of_sync = started["trial_id"].map(partner).map(folders)
        started = started.assign(asked=updates_asked(started), folder_sync=of_sync)
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
    losses = _losses(trial["folder"])
    sync = losses[:0] if pd.isna(trial["folder_sync"]) else _losses(trial["folder_sync"])
    around = range(switch - WINDOW, int(losses.index.max()) + 1) if len(losses) else range(0)
    height, recovery = measure(losses.reindex(around).to_numpy(), sync.reindex(around).to_numpy())
    return {"switch": switch, "height": height, "recovery": recovery}


def _losses(folder: str) -> pd.Series:
    return training_losses(folder).set_index("update")["train_loss"]


def measure(losses: NDArray[np.float64], sync: NDArray[np.float64]) -> tuple[float, float]:
    """Height and recovery, from the losses of the same updates of a trial and its sync partner: the
    WINDOW updates before the switch and all from it on. NaN is a missing loss."""
    if len(losses) < 2 * WINDOW:
        return np.nan, np.nan
    height = float((losses - sync)[WINDOW : 2 * WINDOW].mean())
    if not height > 0:
        return height, np.nan if np.isnan(height) else 0.0
    means = np.lib.stride_tricks.sliding_window_view(losses[WINDOW:], WINDOW).mean(axis=1)
    back = np.flatnonzero(means <= losses[:WINDOW].mean())
    return height, float(back[0] + WINDOW) if len(back) else np.nan


def _switch(trial: Mapping[Any, Any]) -> int:
    """The first update with a delay: in a config, an int counts updates, a float is a share. 0 of a
    folder that was deleted meanwhile."""
    start = config_of(trial["folder"]).get("pipeline", {}).get("synchronous_start", 0)
    return start if isinstance(start, int) else round(start * trial["asked"])


def _of_arm(group: pd.DataFrame) -> dict[str, float]:
    heights = group["height"].dropna().to_numpy(dtype=float)
    mean, low, high = mean_with_ends(heights)
    return {
        "n": len(heights),
        "mean_height": mean,
        "low": low,
        "high": high,
        "recovered": int(group["recovery"].notna().sum()),
    }


def lateness(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per completed trial that measured late updates, from `load`'s table.

    `cosine`: of the optimizer's update and the fresh one, which the same optimizer state would have
    made from the gradient at the newest weights; the mean over the `measured` late updates.
    `error`: likewise the length of their difference over that of the fresh one. Updates that are
    not late equal the fresh ones to the last bit, and are left out. Warns of damaged metrics.
    """
    words = settings(trials)
    done = trials[trials["status"] == Status.COMPLETED]
    rows = [
        {**trial, "setting": words[trial["point"]], **_of_late_updates(trial["folder"])}
        for trial in done[done["delay"].fillna(0) > 0].to_dict("records")
    ]
    trained = pd.DataFrame(rows, columns=LATENESS)
    return trained[trained["measured"] > 0].reset_index(drop=True)


def _of_late_updates(folder: str) -> dict[str, float]:
    of_model = [row["diagnostics"].get("all", {}) for row in metrics(folder, "diagnostics")]
    rows = [[measured.get(name) for name in MEASURES.values()] for measured in of_model]
    table = pd.DataFrame(rows, columns=[*MEASURES], dtype=float)
    late = table[table["error"] > 0]
    return {"measured": len(late), **late.mean()}


def compared(late: pd.DataFrame) -> pd.DataFrame:
    """One row per arm, setting and pair of optimizers, from `lateness`: the mean `difference`, the
    optimizer's cosine minus the other's, paired by seed, with its 95 % interval."""
    rows = [
        {"arm": arm, "setting": setting, **row}
        for (arm, setting), group in late.groupby(["arm", "setting"])
        for row in _paired(group)
    ]
    return pd.DataFrame(rows, columns=COMPARED)


def _paired(group: pd.DataFrame) -> Iterator[dict[str, object]]:
    cosines = group.pivot_table(index="seed", columns="optimizer", values="cosine")
    for optimizer, second in combinations(cosines, 2):
        paired = (cosines[optimizer] - cosines[second]).dropna().to_numpy()
        mean, low, high = mean_with_ends(paired)
        numbers = {"difference": mean, "low": low, "high": high, "n": len(paired)}
        yield {"optimizer": optimizer, "other": second, **numbers}
