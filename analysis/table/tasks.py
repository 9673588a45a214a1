"""What a point is for: its task is all that tuning leaves alone, and how long it trains."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from analysis.points import in_words, varied

TUNED = ("optimizer.", "lr_schedule", "batch_size", "clip_", "eval_every")
"""Starts of the keys that people tune: settings of one task differ in these alone."""
LENGTH = ("num_updates", "tokens_per_parameter")
"""The keys that say how long a trial trains."""


def updates_asked(trials: pd.DataFrame) -> pd.Series:
    """Updates that each trial was asked for, also of one that diverged before."""
    tokens = trials["tokens_per_parameter"].astype("Float64") * trials["num_parameters"]
    by_size = (tokens / (trials["batch_size"] * trials["seq_len"])).round().clip(lower=1)
    return trials["num_updates_asked"].astype("Float64").fillna(by_size).astype("Int64")


def tokens_asked(trials: pd.DataFrame) -> pd.Series:
    """Tokens of these updates; of `tokens_per_parameter` all that it says, so that settings with
    batches of several sizes have the same."""
    tokens = trials["tokens_per_parameter"].astype("Float64") * trials["num_parameters"]
    by_updates = trials["num_updates_asked"] * trials["batch_size"] * trials["seq_len"]
    return tokens.fillna(by_updates.astype("Float64")).round().astype("Int64")


def tasks(trials: pd.DataFrame) -> dict[str, str]:
    """By point, its task in words: model, data, tokens and whatever else of the points of its
    optimizer differs and is not TUNED; empty if nothing does."""
    tokens = tokens_asked(trials.drop_duplicates("point").set_index("point"))
    return {
        point: words
        for group in varied(trials).values()
        for point, words in _words(
            group.assign(tokens=tokens), [*_fixed(group), *_if_varied(tokens[group.index])]
        )
    }


def kinds(trials: pd.DataFrame) -> dict[str, str]:
    """By point, its task but for how long it trains."""
    return {
        point: words
        for group in varied(trials).values()
        for point, words in _words(group, _fixed(group))
    }


def families(trials: pd.DataFrame) -> dict[str, str]:
    """By point, what it shares with the points that differ from it in their length alone."""
    return {
        point: words
        for group in varied(trials).values()
        for point, words in _words(group, [key for key in map(str, group) if key not in LENGTH])
    }


def _fixed(group: pd.DataFrame) -> list[str]:
    return [key for key in map(str, group) if not key.startswith((*TUNED, *LENGTH))]


def _if_varied(tokens: pd.Series) -> list[str]:
    return ["tokens"] if tokens.nunique(dropna=False) > 1 else []


def _words(group: pd.DataFrame, keys: list[str]) -> Iterator[tuple[str, str]]:
    for point, row in group[keys].iterrows():
        yield str(point), in_words(row)
