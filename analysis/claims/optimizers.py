"""What a delay costs each optimizer, and what Error Feedback removes of it: tables 1 and 2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import pandas as pd

from analysis.claims.claim import Claim, Part
from analysis.claims.estimates import Row, absent, below, by_optimizer, gap, removed, within

FRAGILE = ("adamw", "mars")
ROBUST = ("muon", "normuon", "soap", "adan")
BETWEEN = "lion"
NO_OVERLAP = (
    "by 95 % intervals of the mean paired gaps: it is so where they do not overlap and lie that "
    "way round, contradicted where they lie the other way round, else undecided"
)


def _costs(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    rows = gaps[gaps["arm"] == "delay"].to_dict("records")
    named = [(_named(row), row) for row in rows]
    return [within(name, gap(row, "delay"), 0, math.inf) for name, row in named]


def _order(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    return _compare(gaps, [*product(ROBUST, FRAGILE)])


def _between(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    below_it = [(optimizer, BETWEEN) for optimizer in ROBUST]
    return _compare(gaps, [*below_it, *((BETWEEN, optimizer) for optimizer in FRAGILE)])


def _main_pair(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    return _compare(gaps, [("muon", "adamw")])


def _compare(gaps: pd.DataFrame, pairs: Sequence[tuple[str, str]]) -> list[Part]:
    """A part for each (less, more) of optimizers, whether or not there are trials of both."""
    found = by_optimizer(gaps, "delay")
    estimates = [
        (found.get(less, absent(less)), found.get(more, absent(more))) for less, more in pairs
    ]
    return [
        below(f"{less} less than {more}", *two)
        for (less, more), two in zip(pairs, estimates, strict=True)
    ]


def _helps(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    return _shares(gaps, 0, math.inf)


def _most(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    return _shares(gaps, 0.5, 0.9)


def _shares(gaps: pd.DataFrame, low: float, high: float) -> list[Part]:
    rows = gaps[gaps["arm"] == "delay_ef"].to_dict("records")
    return [within(_named(row), removed(row, "share removed"), low, high) for row in rows]


def _named(row: Row) -> str:
    return f"{row['optimizer']} ({row['setting']})" if row["setting"] else str(row["optimizer"])


CLAIMS = (
    Claim(
        "delay_costs",
        "A one-step delay costs loss",
        "tables 1, 2 (360M: +0.010 for Adan to +0.278 for AdamW)",
        ("main", "optimizers"),
        "For each optimizer: the 95 % interval of its mean paired gap lies above 0; contradicted "
        "where it lies below.",
        _costs,
    ),
    Claim(
        "adamw_over_muon",
        "It costs AdamW more than Muon",
        "tables 1, 2 (360M: +0.278 and +0.012)",
        ("main",),
        f"AdamW's gap is larger than Muon's {NO_OVERLAP}.",
        _main_pair,
    ),
    Claim(
        "order",
        "It costs AdamW and MARS more than Muon, NorMuon, SOAP and Adan",
        "tables 1, 2, figure 2",
        ("optimizers",),
        f"Each of the eight pairs, {NO_OVERLAP}.",
        _order,
    ),
    Claim(
        "lion_between",
        "Lion lies in between",
        "tables 1, 2, figure 2",
        ("optimizers",),
        f"Lion's gap is larger than that of each of {', '.join(ROBUST)}, smaller than that of each "
        f"of {', '.join(FRAGILE)}, {NO_OVERLAP}.",
        _between,
    ),
    Claim(
        "ef_helps",
        "Error Feedback removes a part of the gap",
        "tables 1, 2",
        ("main", "optimizers"),
        "For each optimizer: the 95 % interval (Fieller) of the share that it removes lies above "
        "0; contradicted where it lies below.",
        _helps,
    ),
    Claim(
        "ef_most",
        "Error Feedback removes 50 to 90 % of the gap",
        "tables 1, 2 (360M: 58 % of Muon's, 67 % of SOAP's, 90 % of AdamW's)",
        ("main", "optimizers"),
        "For each optimizer: the 95 % interval (Fieller) of the share lies within 50 to 90 %; "
        "contradicted where it lies outside of that altogether.",
        _most,
    ),
)
