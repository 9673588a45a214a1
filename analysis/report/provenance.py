"""What made each trial: code, machine, data, packages."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.records import Record

OF_TRIAL = ["trial_id", "status", "optimizer", "arm", "point", "seed", "final_val_loss"]
MADE_BY = ["git", "trainer_version", "device_name", "runner", "data_hash"]
VERSIONS = "versions."
DIGITS = 12
"""Of a hash: enough to find it by."""


def provenance(trials: pd.DataFrame, records: Sequence[Record]) -> pd.DataFrame:
    """A row a trial that has a result: what it is, its loss, what made it, and in which sweeps it
    is compared. Packages are one column, `torch 2.13.0, numpy 2.4.6`."""
    table = trials[trials["finished_at"].notna()].reindex(columns=[*OF_TRIAL, *MADE_BY])
    for name in ("git", "data_hash"):
        table[name] = table[name].str[:DIGITS]
    versions = trials.loc[table.index].filter(regex=f"^{VERSIONS}")
    versions.columns = versions.columns.str.removeprefix(VERSIONS)
    packages = [
        ", ".join(f"{package} {version}" for package, version in row.items() if pd.notna(version))
        for row in versions.to_dict("records")
    ]
    sweeps = [
        " ".join(record.label for record in records if trial_id in record.compared)
        for trial_id in table["trial_id"]
    ]
    return table.assign(packages=packages, sweeps=sweeps)


def makers(table: pd.DataFrame) -> pd.DataFrame:
    """How many trials each combination of code, machine, data and packages made."""
    keys = [*MADE_BY, "packages"]
    return table.groupby(keys, dropna=False).size().reset_index(name="trials")
