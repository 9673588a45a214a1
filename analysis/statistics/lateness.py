"""How near late updates are to the fresh ones, on the mean of a run (figures 17 and 18)."""

from collections.abc import Iterator
from itertools import combinations

import pandas as pd

from analysis.statistics.intervals import mean_with_ends
from analysis.table.metrics import metrics
from analysis.table.points import settings
from trainer.base.status import Status

ARM = ["optimizer", "point", "arm"]
MEASURES = {"cosine": "update_cosine", "error": "update_error"}
"""Column → the diagnostic of the whole model that it is a mean of."""
COLUMNS = [*ARM, "setting", "seed", "trial_id", "measured", *MEASURES]
COMPARED = ["arm", "setting", "optimizer", "other", "difference", "low", "high", "n"]


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
        {**trial, "setting": words[trial["point"]], **_of_trial(trial["folder"])}
        for trial in done[done["delay"].fillna(0) > 0].to_dict("records")
    ]
    trained = pd.DataFrame(rows, columns=COLUMNS)
    return trained[trained["measured"] > 0].reset_index(drop=True)


def _of_trial(folder: str) -> dict[str, float]:
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
        for row in _pairs(group)
    ]
    return pd.DataFrame(rows, columns=COMPARED)


def _pairs(group: pd.DataFrame) -> Iterator[dict[str, object]]:
    cosines = group.pivot_table(index="seed", columns="optimizer", values="cosine")
    for optimizer, other in combinations(cosines, 2):
        paired = (cosines[optimizer] - cosines[other]).dropna().to_numpy()
        mean, low, high = mean_with_ends(paired)
        numbers = {"difference": mean, "low": low, "high": high, "n": len(paired)}
        yield {"optimizer": optimizer, "other": other, **numbers}
