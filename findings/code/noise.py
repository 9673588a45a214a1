"""The theory of the noise beside the gaps of the scale tiny, in docs/theory.md."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

import pandas as pd

from analysis.table.names import minus
from analysis.table.names import optimizer as name
from analysis.theory.score import FEEDBACK, RankCorrelation, rank_correlation, settings
from analysis.theory.stability import Stability, stability
from bench.documents.cells import gap, removed, rows_of, table
from bench.documents.published import of_sweep

K = 0.1
"""At which noise is compared."""
REMOVED = f"removed of the noise at k = {K:g}"
Ranked = tuple[str, str, RankCorrelation]
"""What is ranked, by what of the theory, and how well."""
Settings = Mapping[str, Any]


class Beside(NamedTuple):
    """What the theory says of an optimizer with Error Feedback, and what was measured."""

    theory: Stability
    plain: Mapping[str, Any]
    fed: Mapping[str, Any]
    """The rows of the plain delay and of Error Feedback in the table of gaps."""


def expected(
    optimizer: str, of: Settings, coefficient: float = 1.0, updates: float = math.inf
) -> Stability:
    """A delay of 1 and Error Feedback, for an optimizer of these settings after `updates`."""
    fed = {"_target_": FEEDBACK, "coefficient": coefficient, "lag": 1}
    names = (name(optimizer), "Error Feedback")
    return stability(names, of, fed, delay=1, k=K, updates=updates)


@cache
def _found(sweep: str) -> Sequence[Beside]:
    """Every optimizer and coefficient of a sweep at `tiny`."""
    trials, gaps = of_sweep(sweep, "long")
    by_point = {row["point"]: row for row in trials.to_dict("records")}
    found = []
    for optimizer, arms in rows_of(gaps).items():
        for fed in (row for row in arms.values() if row["method"] == "error_feedback"):
            trial = by_point[fed["point"]]
            of, updates = settings(optimizer, trial), float(trial["num_updates"])
            theory = expected(optimizer, of, fed["coefficient"], updates)
            found.append(Beside(theory, arms["delay"], fed))
    return found


def optimizers() -> str:
    """The noise of each optimizer after the last update at `tiny`, beside its gaps there."""
    found = sorted(_found("shared_rate"), key=lambda one: one.theory.noise_removed)
    rows = [
        [
            *(of.theory.optimizer, f"{of.theory.noise_delayed:.3f}", gap(of.plain)),
            *(_share(of.theory), removed(of.fed)),
        ]
        for of in found
    ]
    heads = ["optimizer", "noise of the delay", "gap of the delay", "EF removes of the noise"]
    return table([*heads, "of the gap"], rows)


def coefficients(sweep: str) -> str:
    """The share that Error Feedback removes of the noise, and of the gap, one column per λ."""
    found = _found(sweep)
    values = sorted({of.fed["coefficient"] for of in found})
    rows = []
    for optimizer in dict.fromkeys(of.theory.optimizer for of in found):
        by_value = {of.fed["coefficient"]: of for of in found if of.theory.optimizer == optimizer}
        at = [by_value[value] for value in values]
        rows.append([f"{optimizer}: of the noise", *(_share(of.theory) for of in at)])
        rows.append([f"{optimizer}: of the gap", *(removed(of.fed) for of in at)])
    return table(["λ", *(f"{value:g}" for value in values)], rows)


def inside(sweep: str) -> str:
    """How many shares of the gap have the share of the noise within their interval."""
    found = _found(sweep)
    within = sum(
        of.fed["removed_low"] <= of.theory.noise_removed <= of.fed["removed_high"] for of in found
    )
    return f"Of {len(found)} shares, {within} have the theory's within their 95 % interval."


def ranked() -> Iterator[Ranked]:
    """Gaps, and what Error Feedback removes of them, by limits and by noise."""
    found = _found("shared_rate")
    theory = pd.DataFrame(
        {
            "sync / delay": of.theory.sync_over_delayed,
            "noise": of.theory.noise_delayed,
            "EF / delay": of.theory.corrected_over_delayed,
            "removed": of.theory.noise_removed,
            "gap": of.plain["gap"],
            "share": of.fed["removed"],
        }
        for of in found
    )
    at, share = "gap of the delay at `tiny`, by optimizer", "share that EF removes at `tiny`"
    yield at, "sync / delay", rank(theory["sync / delay"], theory["gap"])
    yield at, f"noise at k = {K:g}", rank(theory["noise"], theory["gap"])
    yield share, "EF / delay", rank(theory["EF / delay"], theory["share"])
    yield share, REMOVED, rank(theory["removed"], theory["share"])
    known = [of for of in _found("noise") if not math.isnan(of.fed["removed"])]
    for value, each in groupby(sorted(known, key=_coefficient), key=_coefficient):
        pairs = [(of.theory.noise_removed, of.fed["removed"]) for of in each]
        yield f"the same at λ = {value:g}, in `noise`", REMOVED, rank(*zip(*pairs, strict=True))


def _coefficient(of: Beside) -> float:
    return float(of.fed["coefficient"])


def rank(predicted: Iterable[float], measured: Iterable[float]) -> RankCorrelation:
    """Spearman's correlation of two columns."""
    return rank_correlation(list(predicted), list(measured))


def _share(theory: Stability) -> str:
    return minus(f"{100 * theory.noise_removed:.0f} %")
