"""The trials that are published in docs/, by sweep and scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from analysis import gaps, load
from analysis.statistics.tax import MAIN_ARMS

DOCS = Path(__file__).parents[2] / "docs"


class Published(NamedTuple):
    """The files of a sweep's trials, and which of their arms it compares; empty: all."""

    files: Sequence[str]
    arms: Sequence[str] = ()


SWEEPS: Mapping[str, Published] = {
    "main": Published(["tiny_trials"]),
    "optimizers": Published(["optimizers_trials"]),
    "synchronous_start": Published(["optimizers_trials", "synchronous_start_trials"]),
    "gradient_feedback": Published(
        ["tiny_trials", "corrections_trials"], ("sync", "delay", "delay_ef", "delay_ef_gradient")
    ),
    "taylor": Published(
        ["tiny_trials", "corrections_trials"],
        ("sync", "delay", *(f"delay_taylor({10**power})" for power in range(6))),
    ),
    "momentum": Published(["momentum_trials"]),
    "coefficient": Published(["coefficient_trials", "momentum_trials"]),
    "batch_size": Published(["batch_size_trials", "tiny_trials"], ("sync", "delay")),
    "dtype": Published(["dtype_trials"]),
    "families": Published(["families_trials"]),
    "moe_horizon": Published(["moe_horizon_trials"]),
    "moe_learning_rate": Published(["moe_learning_rate_trials"]),
    "second_rung": Published(["second_rung_trials"]),
}
LONG: Mapping[str, Published] = {
    "shared_rate": Published(["long_trials", "nadamw_long_trials"]),
    "main": Published(["replication_long_trials"]),
    "fragile": Published(["replication_long_trials", "fragile_long_trials"], ("sync", "delay")),
    "gradient_feedback": Published(
        ["corrections_long_trials"], ("sync", "delay", "delay_ef", "delay_ef_gradient")
    ),
    "taylor": Published(["taylor_long_trials"]),
    "cooldown": Published(
        ["corrections_long_trials"],
        (
            *("sync", "delay", "delay_ef", "delay_ef+cooldown(0.1)"),
            *(f"delay+cooldown({share})" for share in (0.05, 0.1, 0.2)),
        ),
    ),
    "horizon": Published(["horizon_long_trials", "horizon_soap_long_trials"]),
    "ladder": Published(["ladder_long_trials", "ladder_top_long_trials"]),
    "horizon_end": Published(["horizon_end_long_trials"]),
    "synchronous_start": Published(["synchronous_start_long_trials"]),
    "nadamw": Published(["nadamw_long_trials", "nadamw_momentum_long_trials"]),
    "nesterov": Published(["nesterov_long_trials"]),
    "noise": Published(["noise_long_trials"]),
    "coefficient": Published(["coefficient_long_trials"]),
    "momentum": Published(["momentum_long_trials"]),
    "overshoot": Published(["overshoot_long_trials"]),
    "momentum_ends": Published(["momentum_ends_more_long_trials"]),
    "batch_size": Published(["batch_size_six_long_trials"]),
    "remedies": Published(["remedies_long_trials"]),
    "spike": Published(["spike_long_trials"]),
    "stages": Published(["stages_long_trials"]),
    "staleness": Published(["staleness_long_trials"]),
    "tuned_shared": Published(["tuned_shared_long_trials"]),
    "tuned_own": Published(["tuned_own_long_trials"]),
}
SCALES = {"tiny": SWEEPS, "long": LONG}
"""The sweeps of each scale that have published trials."""
FRONT = Published(["trials"])
"""Those of the README's job, `main` at `tiny`."""
FRONT_ADVICE = Published(["trials", "advice_long_trials"])
"""Those, and delayed runs that are as much longer as 2BW is faster."""
LENGTHS = Published(["tiny_trials", "advice_trials", "momentum_trials"], ("sync", *MAIN_ARMS))
"""Trials of several lengths at `tiny`."""


class View(NamedTuple):
    """Trials that are compared, and their gaps."""

    trials: pd.DataFrame
    gaps: pd.DataFrame


def view(*published: Published) -> View:
    """The trials of all of these together."""
    return _view(tuple((tuple(one.files), tuple(one.arms)) for one in published))


@cache
def _view(published: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]) -> View:
    tables = []
    for files, arms in published:
        table = pd.concat([load(DOCS / f"{name}.csv") for name in files])
        tables.append(table[table["arm"].isin(arms)] if arms else table)
    trials = pd.concat(tables).drop_duplicates("trial_id").reset_index(drop=True)
    return View(trials, gaps(trials))


def of_sweep(sweep: str, scale: str = "tiny") -> View:
    """The trials of one sweep; of `coefficient` only the points at which it has some."""
    found = view(SCALES[scale][sweep])
    if sweep != "coefficient":
        return found
    points = found.gaps.loc[found.gaps["coefficient"].notna() & (found.gaps["pairs"] > 0), "point"]
    trials = found.trials[found.trials["point"].isin(points)]
    return View(trials, gaps(trials))


def published_scores() -> pd.DataFrame:
    """`analysis.downstream` of the trials of three small models, which `model` names."""
    found = pd.read_csv(DOCS / "downstream.csv")
    return found.sort_values(["model", "optimizer", "arm", "task"], kind="stable")
