"""What a point is for: its task is all that tuning leaves alone, and how long it trains."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from analysis.points import in_words, varied

TUNED = ("optimizer.", "lr_schedule", "batch_size", "clip_", "eval_every")
"""Starts of the keys that people tune: settings of one task differ in these alone."""
LENGTH = ("num_updates", "tokens_per_parameter")
"""The keys that say how long a trial trains."""


def tokens_asked(trials: pd.DataFrame) -> pd.Series:
    """Tokens that each trial was asked to train on, also of one that diverged before."""
    by_updates = trials["num_updates_asked"] * trials["batch_size"] * trials["seq_len"]
    by_size = trials["tokens_per_parameter"].astype("Float64") * trials["num_parameters"]
    return by_updates.astype("Float64").fillna(by_size).round().astype("Int64")


def tasks(trials: pd.DataFrame) -> dict[str, str]:
    """By point, its task in words: model, data, tokens and whatever else of the points of its
    optimizer differs and is not TUNED; empty if nothing does."""
    known = trials.drop_duplicates("point").set_index("point")
    tokens = tokens_asked(known)
    return {
        point: words
        for group in varied(trials).values()
        for point, words in _words(
            group.assign(tokens=tokens), [*_fixed(group), *_if_varied(tokens[group.index])]
        )
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
