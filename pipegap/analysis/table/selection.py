"""The trials of a store, or of several stores together, selected by what is known of them."""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api import types

from pipegap.analysis.table.load import load
from pipegap.analysis.table.points import MACHINE, in_order, num_on_machine
from pipegap.analysis.table.rows import Row
from pipegap.analysis.table.text import fitted, terminal_width
from pipegap.trainer.base.cli import number
from pipegap.trainer.base.errors import ENDED, FINAL, BadInput, Status
from pipegap.trainer.folder.lease import holder
from pipegap.trainer.folder.wellformed import why_failed
from pipegap.trainer.store.opened import pulled
from pipegap.trainer.store.records import Record, records

# Trials of a store by what is known of them: whoever lists, repeats or prunes selects here.

STATUSES = (*ENDED, Status.RUNNING, Status.INTERRUPTED)
SHOWN = (
    *("trial_id", "status", "arm", "optimizer", "seed", "final_val_loss", "num_updates"),
    *("where", "finished_at", "error"),
)
"""Columns of a list, unless others are asked for."""
WIDTH_OF_FILES = 10_000  # letters: a file has no width
LISTED = 10
"""Values of a column that are named where no trial has the one asked for."""


@dataclass(frozen=True)
class Selection:
    """Rows of `load`'s table with two columns more: what a trial is now, and where it ran or runs.

    `status` is one of STATUSES.
    """

    table: pd.DataFrame
    why_empty: str = ""
    """One line if no trial fulfils the conditions: the values that there are."""

    def rows(self) -> list[Row]:
        """Return columns by name; None for what is missing."""
        return _records(self.table)

    def text(self, columns: Sequence[str], form: str) -> str:
        """Return the columns as `text` for people, `csv` or `json`; raises BadInput for an unknown
        column."""
        for column in columns:
            _require_column(self.table, column, "columns", column)
        return FORMS[form](self.table[[*columns]])


def select(results: Path, conditions: Mapping[str, str]) -> Selection:
    """Return the trials of a store that fulfil every condition, a value by the name of a column, by
    optimizer, arm and seed.

    Numbers are compared as numbers, words may hold * and ?, several values are separated by commas,
    `none` stands for what is missing. Warns as `load` does; raises BadInput for a column or status
    that there is not, or a value that is no number where numbers are.
    """
    trials = _with_holders(load(results))
    selected = fulfilling(trials, conditions)
    selected = in_order(selected, ["optimizer", "arm", "seed"])
    return Selection(selected, "" if len(selected) else _why_empty(trials, conditions))


def fulfilling(table: pd.DataFrame, conditions: Mapping[str, str]) -> pd.DataFrame:
    """Return the rows of a table of trials that fulfil every condition; raises as `select` does."""
    if table.empty:
        return table
    for key, value in conditions.items():
        _require_column(table, key, key, value)
        table = table[_fulfils(table[key], key, value)]
    return table


def _why_empty(trials: pd.DataFrame, conditions: Mapping[str, str]) -> str:
    """Say which values each key has among trials that fulfil the other conditions, or among all."""
    if trials.empty:
        return "no trial in the store"
    values_there = []
    for key in conditions:
        other_conditions = {k: value for k, value in conditions.items() if k != key}
        remaining = fulfilling(trials, other_conditions)  # may be empty too
        where = f" where {_said(other_conditions)}" if other_conditions and len(remaining) else ""
        table = trials if remaining.empty else remaining
        values_there.append(f"{key} is {_values(table, key)}{where}")
    return f"no trial with {_said(conditions)}: {'; '.join(values_there)}"


def _said(conditions: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in conditions.items())


def _values(trials: pd.DataFrame, key: str) -> str:
    """`wiki (18 trials), gcide (1 trial)`: the most frequent first, LISTED at most."""
    counts = trials[key].astype("string").fillna("none").value_counts().sort_index()
    most_frequent = counts.sort_values(ascending=False, kind="stable").head(LISTED)
    words = [f"{value} ({n} trial{'s' if n > 1 else ''})" for value, n in most_frequent.items()]
    more = len(counts) - len(most_frequent)
    return ", ".join(words) + (f" and {more} more" if more else "")


def _records(table: pd.DataFrame) -> list[Row]:
    columns = {str(name): table[name].astype(object) for name in table}
    # Of dtype object, so that `tolist` gives Python's own numbers, which JSON can write.
    lists = [column.where(column.notna(), None).tolist() for column in columns.values()]
    return [dict(zip(columns, values, strict=True)) for values in zip(*lists, strict=True)]


def _with_holders(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with STATUSES and `where`: a trial without a result runs, or was left."""
    states = {
        folder: holder(Path(folder))
        for folder in table.loc[table["status"].isin([Status.UNFINISHED, Status.FAILED]), "folder"]
    }
    runs = {folder: attempt for folder, attempt in states.items() if attempt is not None}
    running = table["folder"].isin(list(runs))
    status = (
        table["status"]
        .replace({Status.UNFINISHED: Status.INTERRUPTED})
        .mask(running, Status.RUNNING)
    )
    hosts = {
        folder: f"{attempt.get('host', '?')} pid {attempt.get('pid', '?')}"
        for folder, attempt in runs.items()
    }
    where = table["device_name"].mask(running, table["folder"].map(hosts).astype("string"))
    return table.assign(status=status, where=where)


def _require_column(table: pd.DataFrame, column: str, key: str, value: str) -> None:
    if column in table:
        return
    names = [str(name) for name in table]
    close = get_close_matches(column, names, n=4) or [n for n in names if column in n][:4]
    meant = f"did you mean {', '.join(close)}?" if close else f"for example {', '.join(SHOWN)}"
    raise BadInput(key, value, f"must be a column of the trials ({meant})")


def _fulfils(column: pd.Series, key: str, value: str) -> pd.Series:
    words = value.removeprefix("[").removesuffix("]").split(",")
    fulfils = pd.Series(False, index=column.index)
    for word in map(str.strip, words):
        fulfils |= column.isna() if word == "none" else _equal(column, key, word).fillna(False)
    return fulfils.astype(bool)


def _equal(column: pd.Series, key: str, word: str) -> pd.Series:
    if key == "status" and not any(fnmatchcase(status, word) for status in STATUSES):
        raise BadInput(key, word, f"must be among {', '.join(STATUSES)}")
    if types.is_bool_dtype(column):
        if word not in ("true", "false"):
            raise BadInput(key, word, "must be true or false")
        return column == (word == "true")
    if types.is_numeric_dtype(column):
        if math.isnan(value := number(word)):
            raise BadInput(key, word, "must be a number")
        return column == value
    texts = column.astype("string")
    return texts.map(lambda text: fnmatchcase(text, word), na_action="ignore").astype("boolean")


def _plain(table: pd.DataFrame) -> str:
    """Return the table in columns, or on a terminal that is too narrow, each row by itself."""
    heads = [str(name) for name in table]
    rows = [[*map(_words, row)] for row in table.itertuples(index=False)]
    return "\n".join(fitted(heads, rows, terminal_width() or WIDTH_OF_FILES, heads[:1]))


def _words(value: Any) -> str:
    """Return a value in short: a loss with four digits, a time to the minute, and of an error the
    line that says most."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    if pd.isna(value):
        return ""
    if isinstance(value, pd.Timestamp):
        return value.strftime("%Y-%m-%d %H:%M")
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1 else f"{value:.4f}"
    return why_failed(str(value)) if str(value) else ""


FORMS = {
    "text": _plain,
    "csv": lambda table: table.to_csv(index=False).rstrip("\n"),
    "json": lambda table: json.dumps(_records(table), indent=1, default=str),
}
"""How a list can be written."""


# What one store has, or several stores together: their trials and the records of their sweeps.

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

    Of a trial that several stores have a finished one counts, of these one of the machine of its
    partner, or else the first. Warns of how many there are, and, in a line each, of those whose
    result is another one in a later store.
    """
    tables = [load(store) for store in stores]
    if len(stores) == 1:
        return tables[0], records(stores[0])
    places = [table.assign(store=str(store)) for table, store in zip(tables, stores, strict=True)]
    whole = pd.concat(places, ignore_index=True)
    # Finished trials first; a stable sort keeps the order of the stores among them.
    whole = whole.iloc[(~whole["status"].isin(FINAL)).argsort(kind="stable")]
    # Of several results of a trial that of the machine of most trials of its pair, else the first.
    rank = num_on_machine(whole[whole["status"].isin(FINAL)]).reindex(whole.index, fill_value=0)
    first_rows = rank.groupby(whole["trial_id"], sort=False).idxmax()
    shared = whole[whole.duplicated("trial_id", keep=False)]
    for trial_id, same in shared.groupby("trial_id"):
        is_first = same.index == first_rows[trial_id]
        _warn_of_other_results(pd.concat([same[is_first], same[~is_first]]))
    counts = " and ".join(
        f"{len(table)} trials of {at}" for at, table in zip(stores, tables, strict=True)
    )
    in_both = f"{shared['trial_id'].nunique()} trials are in several and count once"
    where = f"commands name {stores[0]}"
    warnings.warn(f"{counts} are compared, {in_both}; {where}", stacklevel=2)
    trials = whole.loc[first_rows].drop(columns="store").reset_index(drop=True)
    return trials, [record for store in stores for record in records(store)]


def _warn_of_other_results(same: pd.DataFrame) -> None:
    """Warn of what the rows of one trial say in other stores than the first that is shown."""
    columns = [*SAME, *MACHINE, "git", "store", "trial_id"]
    first, *other_rows = same.reindex(columns=columns).astype(object).to_dict("records")
    for row in other_rows:
        differ = [key for key in SAME if str(first[key]) != str(row[key])]
        if differ and row["status"] != Status.UNFINISHED:
            differ += [key for key in (*MACHINE, "git") if str(first[key]) != str(row[key])]
            differences = "; ".join(f"{key} {first[key]} and {row[key]}" for key in differ)
            where = f"{first['store']} (shown) and {row['store']}"
            message = f"trial {first['trial_id']} differs in {where}: {differences}"
            warnings.warn(message, stacklevel=3)
