"""What made each trial: code, machine, data, packages."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from analysis.table.points import versions
from analysis.table.records import Record

OF_TRIAL = ["trial_id", "status", "optimizer", "arm", "point", "seed", "final_val_loss"]
MADE_BY = ["git", "trainer_version", "device_name", "runner", "data_hash"]
LONG = re.compile("^([0-9a-f]{12})[0-9a-f]+")
"""A hash; its first 12 digits are enough to find it."""


def provenance(trials: pd.DataFrame, records: Sequence[Record]) -> pd.DataFrame:
    """One row per trial that has a result: what it is, its loss, what made it, and the sweeps that
    compare it. Packages are one column, `torch 2.13.0, numpy 2.4.6`."""
    table = trials[trials["finished_at"].notna()].reindex(columns=[*OF_TRIAL, *MADE_BY])
    for name in ("git", "data_hash"):
        table[name] = table[name].str.replace(LONG, r"\1", regex=True)
    names = versions(trials)
    packages = [
        ", ".join(
            f"{names[str(key)]} {version}" for key, version in row.items() if pd.notna(version)
        )
        for row in trials.loc[table.index, [*names]].to_dict("records")
    ]
    sweeps = [
        " ".join(record.label for record in records if trial_id in record.compared)
        for trial_id in table["trial_id"]
    ]
    return table.assign(packages=packages, sweeps=sweeps)


def makers(table: pd.DataFrame) -> pd.DataFrame:
    """How many trials were made by each combination of code, machine, data and packages."""
    keys = [*MADE_BY, "packages"]
    return table.groupby(keys, dropna=False).size().reset_index(name="trials")
