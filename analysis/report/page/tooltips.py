"""The text that the page shows for the trial under the pointer: its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from analysis.table.points import READ_AS, in_words, varied

ALWAYS = ["optimizer", "optimizer.lr", "batch_size", "seq_len", "num_updates_asked"]


def settings_by_trial(trials: pd.DataFrame, specs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """For the id of each trial in the data of `specs`, in words: ALWAYS, the keys that differ among
    the points of its optimizer, and its arm."""
    datasets = (rows for spec in specs for rows in spec["datasets"].values())
    shown = {row["trial_id"] for rows in datasets for row in rows if "trial_id" in row}
    of_trials = trials[trials["trial_id"].isin(shown)]
    differing = {point: row for table in varied(trials).values() for point, row in table.iterrows()}
    words = {
        point: in_words(_known(row) | dict(differing.get(point, {})))
        for point, row in of_trials.drop_duplicates("point").set_index("point").iterrows()
    }
    return {
        trial_id: f"{words[point]}, arm={arm}"
        for trial_id, point, arm in of_trials[["trial_id", "point", "arm"]].itertuples(index=False)
    }


def _known(row: pd.Series) -> dict[str, Any]:
    return {READ_AS.get(key, key): row[key] for key in ALWAYS if key in row}
