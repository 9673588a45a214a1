"""What corrections do about it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.claims.claim import Claim, Estimate, Outcome, Part
from analysis.claims.estimates import Row, absent, below, gap, removed

PLAIN, USUAL = "delay", "delay_ef"
MOST = 2 / 3
"""Share of the trials that must diverge: 2 of 3."""


def _near_one(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    found = _with_coefficient(trials, gaps)
    feedback = found[found["arm"].str.fullmatch(r"delay_ef(\(.*\))?")]
    return [
        _one_against_best(str(optimizer), group, gaps)
        for (optimizer, point), group in feedback.groupby(["optimizer", "point"])
        if len(group) > 1
    ]


def _one_against_best(optimizer: str, rows: pd.DataFrame, gaps: pd.DataFrame) -> Part:
    """Overlap says something only where the trials tell λ = 1 from no correction."""
    plain = gaps[(gaps["arm"] == PLAIN) & gaps["point"].isin(rows["point"])]
    usual = rows[rows["arm"] == USUAL]
    at_one = _first(usual, "λ=1")
    if (told := below(optimizer, at_one, _first(plain, "λ=0"))).outcome != Outcome.REPRODUCED:
        return told._replace(
            outcome=Outcome.UNDECIDED, why=told.why or "λ=1 is not better than the plain delay"
        )
    whole = rows[(rows["n"] >= 2) & (rows["diverged"] == 0)]
    row = whole.sort_values("gap").to_dict("records")[0]
    best = gap(row, f"best λ={row['coefficient']:g}")
    outcome = Outcome.CONTRADICTED if best.high < at_one.low else Outcome.REPRODUCED
    return Part(optimizer, outcome, (at_one, best))


def _first(rows: pd.DataFrame, name: str) -> Estimate:
    return gap(rows.to_dict("records")[0], name) if len(rows) else absent(name)


def _with_coefficient(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    key = "correction.coefficient"
    if key not in trials:
        return gaps[:0].assign(coefficient=math.nan)
    values = trials.drop_duplicates("arm").set_index("arm")[key]
    return gaps.assign(coefficient=gaps["arm"].map(values).astype(float))


def _taylor(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    found = _with_coefficient(trials, gaps)
    rows = found[found["arm"].str.startswith("delay_taylor")].sort_values("coefficient")
    return [
        _no_help(str(optimizer), group.to_dict("records"))
        for (optimizer, _), group in rows.groupby(["optimizer", "point"])
    ]


def _no_help(optimizer: str, rows: Sequence[Row]) -> Part:
    shares = [removed(row, f"share removed at λ={row['coefficient']:g}") for row in rows]
    around = [False, *(share.mean > 0 for share in shares), False]
    helping = [
        share
        for share, before, after in zip(shares, around, around[2:], strict=False)
        if share.low > 0 and (before or share is shares[0]) and (after or share is shares[-1])
    ]
    largest = shares[-1]
    if helping:
        return Part(optimizer, Outcome.CONTRADICTED, (helping[-1],))
    if rows[-1]["diverged"] or largest.high < 0:
        return Part(optimizer, Outcome.REPRODUCED, (largest,))
    why = largest.flaw or "the largest coefficient does not change the loss for sure"
    return Part(optimizer, Outcome.UNDECIDED, (largest,), why)


def _diverges(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    rows = gaps[gaps["arm"] == "delay_ef_gradient"].to_dict("records")
    return [_diverged(str(row["optimizer"]), row) for row in rows]


def _diverged(optimizer: str, row: Row) -> Part:
    numbers = (gap(row, f"{row['diverged']} of {row['pairs']} diverged, gap of the others"),)
    if row["pairs"] < 2:
        return Part(optimizer, Outcome.UNDECIDED, numbers, f"{row['pairs']} pairs")
    if row["diverged"] >= MOST * row["pairs"]:
        return Part(optimizer, Outcome.REPRODUCED, numbers)
    if not row["diverged"]:
        return Part(optimizer, Outcome.CONTRADICTED, numbers)
    return Part(optimizer, Outcome.UNDECIDED, numbers, "some diverged, fewer than 2 of 3")


CLAIMS = (
    Claim(
        "coefficient",
        "λ = 1 is near the best coefficient of Error Feedback",
        "figure 15 (135M: NorMuon's best is below 1, that of AdamW, Muon and SOAP slightly above)",
        ("coefficient",),
        "For each optimizer: the 95 % intervals of the gaps at λ = 1 and at the λ of the smallest "
        "mean gap overlap, and the one at λ = 1 lies below that of the plain delay (else the "
        "trials cannot tell); contradicted where they do not overlap.",
        _near_one,
    ),
    Claim(
        "taylor",
        "A Taylor compensation of the gradient does not help",
        "figure 14 (135M, Muon)",
        ("taylor",),
        "For each optimizer: at no coefficient does the 95 % interval of the share that it removes "
        "lie above 0 with its neighbours removing a positive share too, although the largest one "
        "changes the loss (its interval lies below 0, or trials diverge); contradicted where one "
        "does.",
        _taylor,
    ),
    Claim(
        "gradient_feedback",
        "Error Feedback on raw gradients diverges",
        "figure 19 (135M)",
        ("gradient_feedback",),
        "For each optimizer: at least 2 of 3 of its trials diverge while sync completes; "
        "contradicted where none does.",
        _diverges,
    ),
)
