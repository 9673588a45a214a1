"""What was trained, for the first screen of a report."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple

import pandas as pd

from analysis.table import names
from analysis.table.text import some
from trainer.base.status import Status

CUT_SHORT = (Status.DIVERGED, Status.FAILED)
"""Their updates are not those that they were asked for."""
LISTED = 6
"""Values that are named; of more numbers the smallest and the largest are."""


class Overview(NamedTuple):
    """`rows`: what, and its values in words."""

    title: str
    rows: Sequence[tuple[str, str]]


def overview(title: str, trials: pd.DataFrame) -> Overview:
    """Model, parameters, data, optimizers, learning rates, batch, updates, arms and seeds."""
    whole = trials[~trials["status"].isin(CUT_SHORT)]
    values = {
        "model": trials["model"],
        "parameters": trials["num_parameters"],
        "of which active per token": _fewer(trials, "num_active_parameters", "num_parameters"),
        "data": trials["data"],
        "optimizers": trials["optimizer"].map(names.optimizer),
        "learning rates": _column(trials, "optimizer.lr"),
        "sequences per update": _column(trials, "batch_size"),
        "tokens per sequence": _column(trials, "seq_len"),
        "updates": whole["num_updates"],
        "arms": trials["arm"].map(names.arms(trials)),
        "seeds": trials["seed"],
    }
    rows = [(name, _words(column)) for name, column in values.items()]
    counts = trials["status"].value_counts()
    rows.append(("trials", ", ".join(f"{n} {status}" for status, n in counts.items())))
    return Overview(title, [(name, words) for name, words in rows if words])


def _column(trials: pd.DataFrame, name: str) -> pd.Series:
    return trials[name] if name in trials else pd.Series(dtype=object)


def _fewer(trials: pd.DataFrame, name: str, of: str) -> pd.Series:
    """The values of a column that are smaller than those of the other one."""
    return trials.loc[(trials[name] < trials[of]).fillna(value=False), name]


def _words(column: pd.Series) -> str:
    values = sorted({*column.dropna()}, key=_order)
    if len(values) <= LISTED:
        return ", ".join(map(_word, values))
    if isinstance(values[0], str):
        return some([*map(str, values)])
    return f"{_word(values[0])} to {_word(values[-1])} ({len(values)} values)"


def _order(value: Any) -> tuple[bool, Any]:
    """Numbers before words."""
    return (isinstance(value, str), value)


def _word(value: Any) -> str:
    if isinstance(value, Integral):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
