"""Paired gaps from the table of trials, as the rows of comparisons."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.claims.above import Above, Contrast
from analysis.claims.comparison import Comparison, Row
from analysis.claims.rules.at_best import AtBest
from analysis.statistics.pairs import VARIANT, pairs
from analysis.table.points import settings
from analysis.table.schema import OF_ARM
from trainer.base.status import Status

FRAGILE = ("adamw", "mars")
ROBUST = ("muon", "normuon", "soap", "adan")
BETWEEN = "lion"
PAPER = (*FRAGILE, *ROBUST, BETWEEN)
"""The optimizers of the paper."""
DELAY = "pipedream_2bw"
"""The schedule of the paper's delay: every gradient is one update old."""


def measured(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per pair whose sync trial completed: the columns of `pairs`, those of the arm, its
    `setting`, and `value`: the gap, infinite where the arm diverged.

    Raises as `pairs` does; the report repeats its warnings, so they are silenced here.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = pairs(trials)
    found = found[found["status_sync"] == Status.COMPLETED]
    value = found["gap"].astype(float).mask(found["status"] == Status.DIVERGED, np.inf)
    found = found.assign(value=value, setting=found["point"].map(settings(trials)))
    arms = trials.drop_duplicates("arm")[["arm", *(c for c in OF_ARM if c != "base_arm")]]
    return found[value.notna()].sort_values([*VARIANT, "seed"]).merge(arms, on="arm")


def of_delay(found: pd.DataFrame, correction: str) -> pd.DataFrame:
    """Rows of `measured` of the delay with a correction, from the first update to the last."""
    whole = (found["start"] == 0) & (found["cooldown"] == 0)
    return found[whole & (found["schedule"] == DELAY) & (found["method"] == correction)]


def with_key(trials: pd.DataFrame, found: pd.DataFrame, key: str) -> pd.DataFrame:
    """The rows with the value that their point has for a key of the config."""
    if key not in trials:
        return found[:0].assign(**{key: np.nan})
    return found.merge(trials.drop_duplicates("point")[["point", key]], on="point")


def of_points(found: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """For each optimizer and point: the optimizer, both in words, and the rows."""
    for (optimizer, setting, _), rows in found.groupby(["optimizer", "setting", "point"]):
        yield str(optimizer), words(optimizer, setting), rows


def words(*parts: Hashable) -> str:
    """`adamw (optimizer.lr=0.004)`; empty parts are left out."""
    first, *others = [str(part) for part in parts if part]
    return f"{first} ({', '.join(others)})" if others else first


def row(name: str, found: pd.DataFrame, value: str = "value", *, shown: bool = True) -> Row:
    """A column by seed; at a seed with several stages or microbatches, the fewest."""
    seeds, first = np.unique(found["seed"].to_numpy(), return_index=True)
    values = found[value].to_numpy(float, na_value=np.nan)[first]
    known = ~np.isnan(values)
    return Row(name, pd.Series(values[known], seeds[known]), shown)


class Column(NamedTuple):
    """The gap of an arm, with one or more points to choose from."""

    name: str
    found: pd.DataFrame
    """Rows of `measured`."""

    @property
    def points(self) -> list[pd.DataFrame]:
        """Those with the most seeds, and no divergence if there are such."""
        once = self.found.drop_duplicates(["point", "seed"])
        groups = [rows for _, rows in once.groupby("point")]
        most = max(map(len, groups), default=0)
        whole = [rows for rows in groups if len(rows) == most]
        sound = [rows for rows in whole if np.isfinite(rows["value"]).all()]
        return sound or whole[:1]


def more(what: str, less: Column, greater: Column) -> Comparison:
    """That the second gap is larger, each at the point where its sync is best.

    It judges the paper if every optimizer in it is the paper's.
    """
    columns = (less, greater)
    contrast = Contrast(f"{greater.name} minus {less.name}", (-1.0, 1.0), 1)
    choices = [column.points for column in columns]
    optimizers = {name for column in columns for name in column.found["optimizer"]}
    counts = optimizers <= {*PAPER}
    if not all(choices) or all(len(points) <= 1 for points in choices):
        rows = [row(column.name, column.found) for column in columns]
        return Comparison(what, rows, Above((contrast,)), counts)
    rows = [
        row(column.name, point, value, shown=False)
        for column, points in zip(columns, choices, strict=True)
        for value in ("final_val_loss_sync", "value")
        for point in points
    ]
    names = tuple(column.name for column in columns)
    sizes = tuple(len(points) for points in choices)
    return Comparison(what, rows, AtBest((contrast,), points=sizes, names=names), counts)


def ends(found: pd.DataFrame, key: str, values: Sequence[float] | None = None) -> list[Column]:
    """The columns of the smallest and the largest value of a key; fewer without two of them."""
    known = sorted({*found[key].dropna()} if values is None else {*values})
    return [
        Column(f"{key.rpartition('.')[2]} {value:g}", found[found[key] == value])
        for value in (known[:1] + known[1:][-1:])
    ]
