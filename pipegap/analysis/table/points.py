"""The key of a point: what the trials of a comparison must have in common; and how what is made of
tables is made once."""

import hashlib
import json
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, wraps
from typing import Any, TypeVar

import pandas as pd

from pipegap.analysis.table.schema import TRIAL
from pipegap.trainer.base.status import Status
from pipegap.trainer.config.identity import CHANGES_NO_NUMBER
from pipegap.trainer.config.names import GROUPS, without_younger

T = TypeVar("T")

ARM_GROUPS = ("pipeline", "correction")
SHARED_GROUPS = tuple(group for group in GROUPS if group not in ARM_GROUPS)
READ_AS = {"num_updates_asked": "num_updates", "data_hash": "data.path"}
"""Columns that tell points apart → the keys of the config that a reader knows them by."""
CHOICES = ("model", "lr_schedule")
"""Choices that may have the same keys and still be others: their names tell them apart."""
VERSIONS = "versions"
"""The group of columns that hold the versions of packages."""
MEASURES_ONLY = ("diagnostics",)
"""Keys of what a trial measures beside its loss: they change no number of the training."""


def remembered(function: Callable[..., T]) -> Callable[..., T]:
    """Return a function that makes something of tables at its first call with these objects, and
    returns the same thing later.

    Its arguments are tables alone, which nobody changes once they are made: a column is added to a
    copy. The caller changes the returned thing as little.
    """
    known: dict[tuple[int, ...], T] = {}

    @wraps(function)
    def once(*tables: pd.DataFrame) -> T:
        key = tuple(map(id, tables))
        if key not in known:
            known[key] = function(*tables)
            for table in tables:
                weakref.finalize(table, known.pop, key, None)
        return known[key]

    return once


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves by their dotted names; a list is a leaf."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def group_of(key: str) -> str:
    """Return `optimizer` for `optimizer.lr`, and a key that is in no group itself."""
    return key.partition(".")[0]


def versions(trials: pd.DataFrame) -> dict[str, str]:
    """Return the packages by the columns that hold their versions."""
    names = (name.partition(".") for name in map(str, trials))
    return {f"{group}.{rest}": rest for group, _, rest in names if group == VERSIONS}


SHARDS = "data.shards"
"""The key of the folder for tokens of one's own text, a place on one machine: no name shows it."""
BESIDE = "beside"
"""Column of a report: whether another trial of the store ran beside a trial (`pairs.overhead`)."""


@cache
def is_of_point(key: str) -> bool:
    """Return whether a config key belongs to the point.

    Those of the arm, the seed and paths do not, nor does the checkpoint that a trial resumed from:
    it goes on exactly as before, on another number of stages.
    """
    return (
        group_of(key) not in (*ARM_GROUPS, *MEASURES_ONLY)
        and key not in ("seed", "resume_from", BESIDE)
        and key not in CHANGES_NO_NUMBER
    )


def point_columns(flat_config: Mapping[str, Any], data_hash: str | None) -> dict[str, str]:
    """Return `settings_key`, a digest of the settings, and `point`: the digest, a hyphen, and the
    start of the data's hash (0 where it is not known)."""
    return _point(without_younger(flat_config), data_hash)


def loop_point_columns(flat_config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    """Return the same of a recorded loop, whose choices are their names: every word counts, and
    None is as if there was no word."""
    words = {key: value for key, value in flat_config.items() if not key.endswith("._target_")}
    named = {group: names[group] for group in SHARED_GROUPS}
    return _point({k: v for k, v in words.items() if v is not None} | named, None)


def _point(config: Mapping[str, Any], data_hash: str | None) -> dict[str, str]:
    shared = {key: value for key, value in config.items() if is_of_point(key)}
    digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:12]
    return {"settings_key": digest, "point": f"{digest}-{(data_hash or '0')[:8]}"}


def with_one_name(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the table with one name per point for each choice that the arms of a pair share.

    Two names of the same values are the same setting: the name of most trials of the point counts,
    the first by alphabet if several have as many. Else such trials could not be compared.
    """
    return trials.assign(
        **{group: trials["point"].map(_usual(trials, group)) for group in SHARED_GROUPS}
    )


def _usual(trials: pd.DataFrame, group: str) -> pd.Series:
    """Return for each point the name that most of its trials have for a choice."""
    counts = trials.groupby(["point", group]).size().sort_values(ascending=False, kind="stable")
    names = counts.index.to_frame(index=False).drop_duplicates("point")
    return names.set_index("point")[group]


@remembered
def varied(trials: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return for each optimizer a table of its points (index) and the keys that differ (columns).

    A key that the name of a choice tells already is left out.
    """
    in_config = [key for key in map(str, trials) if is_of_point(key) and key not in TRIAL]
    keys = [*(key for key in in_config if group_of(key) != VERSIONS), *READ_AS, *CHOICES]
    # An unfinished trial has not recorded its data: its point is not known in full.
    known = (
        trials[trials["status"] != Status.UNFINISHED].drop_duplicates("point").set_index("point")
    )
    return {
        str(optimizer): group[[READ_AS.get(key, key) for key in _distinguishing(group, keys)]]
        for optimizer, group in known.groupby("optimizer")
    }


def _distinguishing(points: pd.DataFrame, keys: Sequence[str]) -> list[str]:
    """Return the keys that tell points apart.

    Of several models these are their names, and settings that differ between points of one name.
    """
    differing = [key for key in keys if _differs(points[key])]
    by_name = {choice: points.groupby(choice) for choice in CHOICES if choice in differing}
    return [
        key
        for key in differing
        if (choice := group_of(key)) == key
        or choice not in by_name
        or any(_differs(same[key]) for _, same in by_name[choice])
    ]


def _differs(values: pd.Series) -> bool:
    """Return whether there are several values. What is missing is one value: None and NaN stand
    beside each other where several tables were put together."""
    return int(values.nunique()) + int(values.isna().any()) > 1


def settings(trials: pd.DataFrame) -> dict[str, str]:
    """Return for each point, as key=value, the keys that differ among its optimizer's points."""
    return by_point(varied(trials).values(), in_words)


def by_point(tables: Iterable[pd.DataFrame], of_row: Callable[[pd.Series], T]) -> dict[str, T]:
    """Return `of_row` of each row of tables as those of `varied`, by its point."""
    return {str(point): of_row(row) for table in tables for point, row in table.iterrows()}


def in_words(known: pd.Series | Mapping[str, Any]) -> str:
    """Return `optimizer.lr=0.002, batch_size=16` for a row of `varied`, for example.

    What is missing is None, however a column holds it.
    """
    return ", ".join(f"{key}={_or_none(value)}" for key, value in known.items())


def _or_none(value: Any) -> Any:
    return None if pd.api.types.is_scalar(value) and pd.isna(value) else value
