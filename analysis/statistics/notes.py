"""Remarks on a table of gaps: which trials are missing, failed or left out."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

import pandas as pd

from analysis.statistics.regime import INACTIVE, SHORT
from analysis.table.text import some
from trainer.base.status import Status

REASONS = {
    SHORT: "the run is short beside the memory of the momentum",
    INACTIVE: "the decay is too small for the length of the run to do much",
}


def notes(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[str]:
    """One line per remark; none if every trial finished and every pair is there."""
    return [
        *_without_result(trials),
        *_left_out(gaps),
        *_outside(gaps),
        *_missing(gaps),
        *_unpaired(trials, gaps),
    ]


def _without_result(trials: pd.DataFrame) -> Iterator[str]:
    for status in (Status.FAILED, Status.UNFINISHED):
        folders = trials.loc[trials["status"] == status, "folder"].tolist()
        if folders:
            yield f"{len(folders)} {status}, left out: {some(folders)}"


def _left_out(gaps: pd.DataFrame) -> Iterator[str]:
    rows = gaps[gaps["sync_diverged"] > 0]
    for row in rows.to_dict("records"):
        yield (
            f"{row['sync_diverged']} seeds of {_name(row)} {row['arm']} are left out: "
            "their sync trial diverged"
        )


def _outside(gaps: pd.DataFrame) -> Iterator[str]:
    """One line per reason."""
    points = gaps.drop_duplicates("point")
    for reason, why in REASONS.items():
        rows = points[points["regime"].str.contains(reason, regex=False)]
        if len(rows):
            names = dict.fromkeys(map(_name, rows.to_dict("records")))
            yield f"outside of the paper's regime, {reason} ({why}): {some(list(names))}"


def _missing(gaps: pd.DataFrame) -> Iterator[str]:
    """One line per arm, however many points lack it."""
    for column, arm in (("missing_seeds", gaps["arm"]), ("missing_sync_seeds", "sync")):
        rows = gaps.assign(lacking=arm)[gaps[column] != ""]
        for name, group in rows.groupby("lacking"):
            where = [f"{_name(row)} seeds {row[column]}" for row in group.to_dict("records")]
            yield f"{name} is missing: {some(list(dict.fromkeys(where)))}"


def _unpaired(trials: pd.DataFrame, gaps: pd.DataFrame) -> Iterator[str]:
    if not (gaps["pairs"] > 0).any():
        arms = ", ".join(sorted(trials["arm"].unique()))
        yield f"no pairs yet, and so no gap: a sync trial and another arm at one seed (got: {arms})"


def _name(row: Mapping[Hashable, object]) -> str:
    return f"{row['optimizer']} ({row['setting']})" if row["setting"] else str(row["optimizer"])
