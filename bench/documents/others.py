"""Our law of the token tax beside what others measured: the table of docs/forecast.md."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from analysis import load
from analysis.forecast.forecast import Forecaster
from analysis.forecast.ladder import Ladder, ladders
from analysis.forecast.text import tax_text
from analysis.statistics.reported import reported_taxes
from analysis.table.names import REPORTED_ARMS
from analysis.table.names import optimizer as name
from bench.documents.cells import table
from bench.documents.published import DOCS

RUNGS = ("horizon_long_trials", "forecast_trials")
"""Ours, at `long`: 400 to 6,400 updates."""
UPDATES: Mapping[str, int] = {
    "paper, 360M": 27_604,
    "marin, 130M MoE, T = 6,000": 6_000,
    "marin, 130M MoE, T = 15,000": 15_000,
}
"""Who → updates of the run. The paper's: 20 tokens per parameter in batches of 256 x 1,024."""
OURS = {"pipedream": "delay"}
"""An arm of theirs → the arm of ours that is nearest to it."""
SEEDS = 3


@cache
def _ladders() -> Mapping[tuple[str, str], Ladder]:
    trials = pd.concat([load(DOCS / f"{file}.csv") for file in RUNGS])
    trials = trials.drop_duplicates("trial_id").reset_index(drop=True)
    return {
        (optimizer, ladder.arm): ladder
        for optimizer in sorted(set(trials["optimizer"]))
        for ladder in ladders(trials, optimizer)
    }


@cache
def _forecaster(optimizer: str, arm: str) -> Forecaster:
    return Forecaster(_ladders()[optimizer, arm])


def taxes() -> str:
    """Theirs, and what our law says at as many updates of our own runs."""
    lines = [_line(row) for row in reported_taxes().to_dict("records")]
    return table(["who", "optimizer, arm", "updates", "their tax", "our law there [95 %]"], lines)


def _line(row: Mapping[Any, Any]) -> list[str]:
    who, optimizer, arm = (str(row[key]) for key in ("who", "optimizer", "arm"))
    said = f"{name(optimizer)}, {REPORTED_ARMS.get(arm, arm)}"
    ours = _at(optimizer, OURS.get(arm, arm), UPDATES[who])
    return [who, said, f"{UPDATES[who]:,}", f"{row['tax']:.2f}", ours]


def _at(optimizer: str, arm: str, updates: int) -> str:
    if (optimizer, arm) not in _ladders():
        return ""
    _, batch, parameters = _ladders()[optimizer, arm].settings[0]
    return tax_text(
        _forecaster(optimizer, arm).at(np.array([[updates, batch, parameters]]), SEEDS)[0]
    )


def exponents() -> str:
    """p of tax - 1 ~ T^-p: of our laws, and between marin's two horizons."""
    return table(["who", "optimizer, arm", "p", "from"], [*_ours(), *_theirs()])


def _ours() -> Iterator[list[str]]:
    for (optimizer, arm), ladder in _ladders().items():
        found = _forecaster(optimizer, arm).forms[0]
        lengths = [rung.updates for rung in ladder.rungs]
        said = f"{len(lengths)} lengths, {min(lengths):,} to {max(lengths):,} updates"
        words = f"{name(optimizer)}, {REPORTED_ARMS[arm]}"
        yield ["ours", words, f"{found.exponents['p']:+.2f}", f"{said}, {found.form}"]


def _theirs() -> Iterator[list[str]]:
    marin = reported_taxes()[reported_taxes()["who"].str.startswith("marin")]
    for (optimizer, arm), rows in marin.groupby(["optimizer", "arm"]):
        excess = {UPDATES[str(row["who"])]: row["tax"] - 1 for row in rows.to_dict("records")}
        if len(excess) == 2:
            (short, first), (long, last) = sorted(excess.items())
            p = math.log(first / last) / math.log(long / short)
            words = f"{name(str(optimizer))}, {REPORTED_ARMS.get(str(arm), arm)}"
            yield ["marin", words, f"{p:+.2f}", f"2 lengths, {short:,} and {long:,} updates"]
