"""The task of a point: the settings that tuning leaves alone, and how long it trains."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from pipegap.analysis.table.points import by_point, group_of, in_words, labelled, varied

TUNED = (
    *("optimizer", "lr_schedule", "batch_size", "clip_norm", "clip_scope"),
    *("eval_every", "eval_tokens"),
)
"""Groups and keys that people tune: settings of one task differ in these alone."""
LENGTH = ("num_updates", "tokens_per_parameter")
"""The keys that say how long a trial trains."""
DECAY = "optimizer.weight_decay"
NO_KEYS = ("data_hash", "point")
"""Columns that may tell points apart, and are no keys of the config."""


def updates_asked(trials: pd.DataFrame) -> pd.Series:
    """Return how many updates each trial was asked for, whether or not it got there."""
    tokens = trials["tokens_per_parameter"].astype("Float64") * trials["num_parameters"]
    by_size = (tokens / (trials["batch_size"] * trials["seq_len"])).round().clip(lower=1)
    return trials["num_updates_asked"].astype("Float64").fillna(by_size).astype("Int64")


def tokens_asked(trials: pd.DataFrame) -> pd.Series:
    """Return how many tokens each trial was asked for.

    Those of `tokens_per_parameter` are not rounded to whole batches: then settings with batches of
    several sizes have as many.
    """
    tokens = trials["tokens_per_parameter"].astype("Float64") * trials["num_parameters"]
    by_updates = trials["num_updates_asked"] * trials["batch_size"] * trials["seq_len"]
    return tokens.fillna(by_updates.astype("Float64")).round().astype("Int64")


def tasks(trials: pd.DataFrame) -> dict[str, str]:
    """Return for each point its task in words: model, data, tokens and whatever else differs among
    the points of its optimizer and is not TUNED; empty if nothing does."""
    tokens = tokens_asked(trials.drop_duplicates("point").set_index("point"))

    def settings(group: pd.DataFrame) -> pd.DataFrame:
        is_varied = tokens[group.index].nunique(dropna=False) > 1
        return _fixed(group).assign(**{"tokens": tokens} if is_varied else {})

    return by_point(map(settings, labelled(trials)), in_words)


def kinds(trials: pd.DataFrame) -> dict[str, str]:
    """Return for each point its task in words, but for how long it trains."""
    return by_point(map(_fixed, labelled(trials)), in_words)


class Family(NamedTuple):
    """What a point shares with the points that differ from it in their length alone."""

    words: str
    label: str
    """The words for people: those of the keys that differ among points that have a pair."""
    keys: Mapping[str, Any]
    """What the points share, by key of the config; None is null."""


def families(trials: pd.DataFrame) -> dict[str, Family]:
    """Return for each point its family; points of one family have the same words."""
    labels = by_point(map(_without_length, labelled(trials)), in_words)
    tables = map(_without_length, varied(trials).values())
    return by_point(
        tables, lambda row: Family(in_words(row), labels[str(row.name)], _as_config(row))
    )


def families_by_decay(trials: pd.DataFrame) -> dict[str, str]:
    """Return for each point what it shares with points that differ in their length alone, where the
    weight decay of an update falls as the updates grow, so that each run decays as much in all."""
    updates = updates_asked(trials.drop_duplicates("point").set_index("point"))

    def settings(group: pd.DataFrame) -> pd.DataFrame:
        if DECAY not in group:
            return group.head(0)
        decay = group[DECAY].astype(float) * updates[group.index].astype(float)
        in_all = decay.map(lambda total: float(f"{total:.9g}"))
        return _without_length(group.assign(**{DECAY: in_all}))

    return by_point(map(settings, varied(trials).values()), in_words)


def _as_config(row: pd.Series) -> dict[str, Any]:
    return {
        str(key): None if pd.isna(value) else value
        for key, value in row.to_dict().items()
        if key not in NO_KEYS
    }


def _fixed(group: pd.DataFrame) -> pd.DataFrame:
    """Return the settings that are neither tuned nor a length."""
    fixed_keys = [
        key for key in map(str, group) if group_of(key) not in TUNED and key not in LENGTH
    ]
    return group[fixed_keys]


def _without_length(group: pd.DataFrame) -> pd.DataFrame:
    return group[[key for key in group if key not in LENGTH]]
