"""What one store has, or several stores together: their trials and the records of their sweeps."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from pipegap.analysis.table.load import load
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.status import FINAL, Status
from pipegap.trainer.store.opened import pulled
from pipegap.trainer.store.records import Record, records

SAME = ("status", "final_val_loss", "diverged_at", "num_updates")
"""Columns that are equal for one trial wherever it ran."""


def several(word: str) -> list[str]:
    """Return the stores that `[A,B]` names; one of any other word, and of a path that exists.

    Raises BadInput for a store twice.
    """
    if not (word.startswith("[") and word.endswith("]")) or Path(word).exists():
        return [word]
    stores = [store.strip() for store in word[1:-1].split(",")]
    if not all(stores) or len({*map(pulled, stores)}) < len(stores):
        raise BadInput("results", word, "must name stores, each once: [A,B]")
    return stores


def stored(stores: Sequence[Path]) -> tuple[pd.DataFrame, list[Record]]:
    """Return the trials of these stores, each once, and their records.

    A trial that several stores have is the finished one, or else the first. Warns of how many there
    are, and, in a line each, of those whose result is another one in a later store.
    """
    tables = [load(store) for store in stores]
    if len(stores) == 1:
        return tables[0], records(stores[0])
    places = [table.assign(store=str(store)) for table, store in zip(tables, stores, strict=True)]
    whole = pd.concat(places, ignore_index=True)
    whole = whole.iloc[(~whole["status"].isin(FINAL)).argsort(kind="stable")]
    shared = whole[whole.duplicated("trial_id", keep=False)]
    for _, same in shared.groupby("trial_id"):
        _warn_of_other_results(same)
    counts = " and ".join(
        f"{len(table)} trials of {at}" for at, table in zip(stores, tables, strict=True)
    )
    in_both = f"{shared['trial_id'].nunique()} trials are in several and count once"
    where = f"commands name {stores[0]}"
    warnings.warn(f"{counts} are compared, {in_both}; {where}", stacklevel=2)
    first = whole.drop_duplicates("trial_id").drop(columns="store").reset_index(drop=True)
    return first, [record for store in stores for record in records(store)]


def _warn_of_other_results(same: pd.DataFrame) -> None:
    """Warn of what the rows of one trial say in other stores than the first that is shown."""
    first, *other_rows = same[[*SAME, "store", "trial_id"]].astype(object).to_dict("records")
    for row in other_rows:
        differ = [key for key in SAME if str(first[key]) != str(row[key])]
        if differ and row["status"] != Status.UNFINISHED:
            differences = "; ".join(f"{key} {first[key]} and {row[key]}" for key in differ)
            where = f"{first['store']} (shown) and {row['store']}"
            warnings.warn(
                f"trial {first['trial_id']} differs in {where}: {differences}", stacklevel=3
            )
