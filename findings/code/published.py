"""The published trials: `findings/STUDY/trials_SCALE.csv`, by sweep and scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from analysis import gaps, load
from analysis.statistics.tax import MAIN_ARMS
from trainer.base.cli import one_of

FINDINGS = Path(__file__).parents[1]
ROOT = FINDINGS.parent
FEW, TINY = "few_updates", "tiny"
FED_GRADIENT = ("sync", "delay", "delay_ef", "delay_ef_gradient")
Tables = tuple[str, ...]


class Published(NamedTuple):
    """Tables of trials by their path in findings/, and the arms that are compared; empty: all."""

    tables: Tables
    arms: Tables = ()


EXCEPTIONS: Mapping[tuple[str, str], Published] = {
    ("synchronous_start", FEW): Published(
        ("optimizers/trials_few_updates", "synchronous_start/trials_few_updates")
    ),
    ("gradient_feedback", FEW): Published(
        ("main/trials_few_updates", "gradient_feedback/trials_few_updates"), FED_GRADIENT
    ),
    ("taylor", FEW): Published(
        ("main/trials_few_updates", "gradient_feedback/trials_few_updates"),
        ("sync", "delay", *(f"delay_taylor({10**power})" for power in range(6))),
    ),
    ("coefficient", FEW): Published(
        ("coefficient/trials_few_updates", "momentum/trials_few_updates")
    ),
    ("batch_size", FEW): Published(
        ("batch_size/trials_few_updates", "main/trials_few_updates"), ("sync", "delay")
    ),
    ("shared_rate", TINY): Published(("shared_rate/trials_tiny", "shared_rate/trials_tiny_nadamw")),
    ("main", TINY): Published(("replication/trials_tiny",)),
    ("fragile", TINY): Published(
        ("replication/trials_tiny", "fragile/trials_tiny"), ("sync", "delay")
    ),
    ("gradient_feedback", TINY): Published(("gradient_feedback/trials_tiny",), FED_GRADIENT),
    ("cooldown", TINY): Published(
        ("gradient_feedback/trials_tiny",),
        (
            *("sync", "delay", "delay_ef", "delay_ef+cooldown(0.1)"),
            *(f"delay+cooldown({share})" for share in (0.05, 0.1, 0.2)),
        ),
    ),
    ("horizon", TINY): Published(("horizon/trials_tiny", "horizon/trials_tiny_soap")),
    ("ladder", TINY): Published(("ladder/trials_tiny", "ladder_top/trials_tiny")),
    ("nadamw", TINY): Published(("shared_rate/trials_tiny_nadamw", "nadamw/trials_tiny")),
}
"""Sweep and scale → what is published of them, where it is not their study's own table."""
FRONT = Published(("main/trials_tiny",))
"""The trials of the README's job, `main` at `tiny`."""
FRONT_ADVICE = Published((*FRONT.tables, "main/advice_tiny"))
"""Those of the README's job, and delayed runs that are as much longer as 2BW is faster."""
LENGTHS = Published(
    ("main/trials_few_updates", "main/advice_few_updates", "momentum/trials_few_updates"),
    ("sync", *MAIN_ARMS),
)
"""Trials of several lengths at `few_updates`."""


class View(NamedTuple):
    """Trials that are compared, and their gaps."""

    trials: pd.DataFrame
    gaps: pd.DataFrame


def sweeps(scale: str) -> list[str]:
    """The sweeps that have published trials at a scale, sorted."""
    own = {path.parent.name for path in FINDINGS.glob(f"*/trials_{scale}.csv")}
    return sorted(own | {sweep for sweep, at in EXCEPTIONS if at == scale})


def published(sweep: str, scale: str) -> Published:
    """What is published of a sweep at a scale. Raises BadInput if nothing is."""
    if sweep not in sweeps(scale):
        raise one_of("sweep", sweep, sweeps(scale))
    return EXCEPTIONS.get((sweep, scale), Published((f"{sweep}/trials_{scale}",)))


def read(table: str) -> pd.DataFrame:
    """A table of trials by its path in findings/ without .csv. Raises BadInput if there is none."""
    return load(FINDINGS / f"{table}.csv")


@cache
def view(*parts: Published) -> View:
    """The trials of all `parts` together, each trial once."""
    tables = []
    for part in parts:
        trials = pd.concat([read(table) for table in part.tables])
        tables.append(trials[trials["arm"].isin(part.arms)] if part.arms else trials)
    trials = pd.concat(tables).drop_duplicates("trial_id").reset_index(drop=True)
    return View(trials, gaps(trials))


def of_sweep(sweep: str, scale: str) -> View:
    """The trials of one sweep; of `coefficient` only the points at which it has some."""
    shown = view(published(sweep, scale))
    if sweep != "coefficient":
        return shown
    corrected = shown.gaps["coefficient"].notna() & (shown.gaps["pairs"] > 0)
    return at_points(shown, shown.gaps.loc[corrected, "point"])


def at_points(shown: View, points: Sequence[str] | pd.Series) -> View:
    """The trials at these points alone."""
    trials = shown.trials[shown.trials["point"].isin(points)]
    return View(trials, gaps(trials))


def scores() -> pd.DataFrame:
    """`analysis.downstream` of the trials of three small models, which `model` names."""
    rows = pd.read_csv(FINDINGS / "downstream" / "scores.csv")
    return rows.sort_values(["model", "optimizer", "arm", "task"], kind="stable")


def spikes(trials: pd.DataFrame) -> pd.DataFrame:
    """The published rows of `analysis.statistics.spikes`, with the points of their trials."""
    heights = pd.read_csv(FINDINGS / "spike" / "heights_tiny.csv")
    return heights.merge(trials[["trial_id", "point"]], on="trial_id")
