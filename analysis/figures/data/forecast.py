"""A fitted law over the lengths, the rungs behind it, and where it is extrapolated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import pandas as pd

from analysis.figures.data.panels import PANEL
from analysis.forecast.answer import Answer
from analysis.forecast.forecast import Forecaster
from analysis.forecast.ladder import Rung, name_of
from analysis.statistics.intervals import mean_interval
from analysis.table import names

RUNG, LAW, TARGET, MEASURED = "rung", "law", "forecast", "measured"
STEPS = 61
"""Lengths at which the law is drawn."""
COLUMNS = [*PANEL, "kind", "series", "updates", "n", "mean", "low", "high", "is_beyond"]


def data(answers: Sequence[Answer], measured: Sequence[Rung] = ()) -> pd.DataFrame:
    """One row per rung, per length at which the law is drawn, and for the target of each answer
    that has a forecast. `measured`: what the runs said that were forecast, one for each answer, or
    none.

    `kind`: RUNG, LAW, TARGET or MEASURED; `mean`, `low`, `high`: gaps in nats per token; `series`:
    batch and size; `is_beyond`: outside of the lengths of the rungs.
    """
    rows = [
        row
        for answer, rung in zip_longest(answers, measured)
        if answer.point
        for row in _rows(answer, rung)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _rows(of: Answer, measured: Rung | None) -> Iterator[dict[str, Any]]:
    panel = {
        "panel": f"{names.optimizer(of.ladder.optimizer)}, {of.ladder.arm}",
        "subtitle": f"law and forecast: {_size(of.target)}",
    }
    own = of.ladder.settings[:, 0]
    yield from ({**panel, **_seen(RUNG, rung, own)} for rung in of.ladder.rungs)
    if measured is not None:
        yield {**panel, **_seen(MEASURED, measured, own)}
    yield from ({**panel, **row} for row in _law(of))


def _seen(kind: str, rung: Rung, own: Any) -> dict[str, Any]:
    low, high = mean_interval(rung.gaps)
    return {
        **{"kind": kind, "series": _size(rung.settings), "updates": rung.updates},
        **{"n": len(rung.gaps), "mean": rung.gaps.mean(), "low": low, "high": high},
        "is_beyond": _is_outside(rung.updates, own),
    }


def _law(of: Answer) -> Iterator[dict[str, Any]]:
    """From the shortest to the longest of rungs and target, and at the target."""
    own = of.ladder.settings[:, 0]
    ends = min(own.min(), of.target[0]), max(own.max(), of.target[0])
    lengths = [*np.geomspace(*ends, STEPS), of.target[0]]
    points = Forecaster(of.ladder).at(
        np.array([(length, *of.target[1:]) for length in lengths]), of.seeds
    )
    for i, (length, point) in enumerate(zip(lengths, points, strict=True)):
        low, high = point.gap_interval
        yield {
            **{"kind": LAW if i < STEPS else TARGET, "series": _size(of.target)},
            **{"updates": length, "n": of.seeds, "mean": point.gap, "low": low, "high": high},
            "is_beyond": _is_outside(length, own),
        }


def _is_outside(length: float, own: Any) -> bool:
    """Whether a length is beyond the rungs, rounding aside."""
    return bool(length < own.min() * (1 - 1e-9) or length > own.max() * (1 + 1e-9))


def _size(settings: Sequence[float]) -> str:
    """`B=128, N=108,928`."""
    return name_of(settings).partition(", ")[2]
