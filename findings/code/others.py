"""Our law of the token tax beside what others measured: the table of docs/forecast.md."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from analysis import load
from analysis.figures.figure import Plot
from analysis.figures.forecast import drawn
from analysis.forecast.answer import answer
from analysis.forecast.forecast import Forecaster
from analysis.forecast.ladder import Ladder, ladders
from analysis.forecast.text import tax_text
from analysis.statistics.reported import reported_taxes
from analysis.table.names import REPORTED_ARMS, minus
from analysis.table.names import optimizer as name
from bench.documents.cells import table
from bench.documents.published import DOCS, LONG, SWEEPS

RUNGS: Mapping[str, Sequence[str]] = {
    "ours, 0.1M, same decay": ["horizon_long_trials", "forecast_trials"],
    "ours, 0.1M": LONG["ladder"].files,
    "ours, 0.4M": SWEEPS["second_rung"].files,
}
"""Whose runs → the files of their trials."""
UPDATES: Mapping[str, int] = {
    "paper, 360M": 27_604,
    "marin, 130M MoE, T = 6,000": 6_000,
    "marin, 130M MoE, T = 15,000": 15_000,
}
"""Who → updates of the run. The paper's: 20 tokens per parameter in batches of 256 x 1,024."""
OURS = {"pipedream": "delay"}
"""An arm of theirs → the arm of ours that is nearest to it."""
SEEDS = 3
LONGEST, SEEDS_OF_LONGEST = (12_800, 128, 108_928), 5
"""Updates, tokens per update and parameters of the sweep `ladder_top`."""


def _ladders(whose: str) -> Mapping[tuple[str, str], Ladder]:
    return _of_files(tuple(RUNGS[whose]))


@cache
def _of_files(files: tuple[str, ...]) -> Mapping[tuple[str, str], Ladder]:
    """Optimizer and arm → the ladder of some files' trials."""
    trials = pd.concat([load(DOCS / f"{file}.csv") for file in files])
    trials = trials.drop_duplicates("trial_id").reset_index(drop=True)
    return {
        (optimizer, ladder.arm): ladder
        for optimizer in sorted(set(trials["optimizer"]))
        for ladder in ladders(trials, optimizer)
    }


@cache
def _forecaster(whose: str, optimizer: str, arm: str) -> Forecaster:
    return Forecaster(_ladders(whose)[optimizer, arm])


def taxes() -> str:
    """Theirs, and what our laws say at as many updates of our own runs."""
    heads = ["who", "optimizer, arm", "updates", "their tax", *RUNGS]
    return table(heads, [_line(row) for row in reported_taxes().to_dict("records")])


def _line(row: Mapping[Any, Any]) -> list[str]:
    who, optimizer, arm = (str(row[key]) for key in ("who", "optimizer", "arm"))
    said = f"{name(optimizer)}, {REPORTED_ARMS.get(arm, arm)}"
    ours = [_at(whose, optimizer, OURS.get(arm, arm), UPDATES[who]) for whose in RUNGS]
    return [who, said, f"{UPDATES[who]:,}", f"{row['tax']:.2f}", *ours]


def _at(whose: str, optimizer: str, arm: str, updates: int) -> str:
    """Our tax in runs of so many updates, of the smallest batch among the rungs."""
    if (optimizer, arm) not in _ladders(whose):
        return ""
    _, batch, parameters = _ladders(whose)[optimizer, arm].settings.min(0)
    settings = np.array([[updates, batch, parameters]])
    return tax_text(_forecaster(whose, optimizer, arm).at(settings, SEEDS)[0])


def exponents() -> str:
    """p and q of tax - 1 ~ T^-p B^q: of our laws, and p between marin's two horizons."""
    heads = ["who", "optimizer, arm", "p [95 %]", "q [95 %]", "from"]
    return table(heads, [*_ours(), *_theirs()])


def longest() -> Plot:
    """What was foretold of the largest rung of the ladder at `tiny`, and what it said."""
    rungs, all_rungs = (
        _of_files(tuple(files)) for files in (LONG["ladder"].files[:1], LONG["ladder"].files)
    )
    arms = [(optimizer, "delay") for optimizer in ("adamw", "muon")]
    return drawn(
        [answer(rungs[arm], LONGEST, SEEDS_OF_LONGEST) for arm in arms],
        [rung for arm in arms for rung in all_rungs[arm].rungs if rung.settings == LONGEST],
    )


def _ours() -> Iterator[list[str]]:
    for whose in RUNGS:
        for (optimizer, arm), ladder in _ladders(whose).items():
            forecaster = _forecaster(whose, optimizer, arm)
            form = forecaster.forms[0].form
            lengths = sorted({rung.updates for rung in ladder.rungs})
            said = f"{len(lengths)} lengths, {lengths[0]:,} to {lengths[-1]:,} updates"
            words = f"{name(optimizer)}, {REPORTED_ARMS[arm]}"
            p, q = (_exponent(forecaster, letter) for letter in ("p", "q"))
            yield [whose, words, p, q, f"{said}, {form}"]


def _exponent(forecaster: Forecaster, letter: str) -> str:
    """Of the form that foretells best, with its interval; empty if the ladder does not vary it."""
    if letter not in forecaster.exponents:
        return ""
    low, high = forecaster.exponents[letter]
    best = forecaster.forms[0].exponents[letter]
    return minus(f"{best:+.2f} [{low:+.2f}, {high:+.2f}]")


def _theirs() -> Iterator[list[str]]:
    marin = reported_taxes()[reported_taxes()["who"].str.startswith("marin")]
    for (optimizer, arm), rows in marin.groupby(["optimizer", "arm"]):
        excess = {UPDATES[str(row["who"])]: row["tax"] - 1 for row in rows.to_dict("records")}
        if len(excess) == 2:
            (short, first), (long, last) = sorted(excess.items())
            p = math.log(first / last) / math.log(long / short)
            words = f"{name(str(optimizer))}, {REPORTED_ARMS.get(str(arm), arm)}"
            yield ["marin", words, f"{p:+.2f}", "", f"2 lengths, {short:,} and {long:,} updates"]
