"""Claims about corrections: Error Feedback, Taylor compensation, feedback on gradients."""

from __future__ import annotations

import pandas as pd

from analysis.claims.claim import Claim
from analysis.claims.comparison import Comparison, Row
from analysis.claims.measure import PAPER, measured, of_delay, of_points, row
from analysis.claims.rule import SAME
from analysis.claims.rules.diverges import Diverges
from analysis.claims.rules.near_best import near_best
from analysis.claims.rules.no_help import NoHelp
from trainer.base.status import Status


def _near_one(trials: pd.DataFrame) -> list[Comparison]:
    found = measured(trials)
    compared = []
    for optimizer, name, rows in of_points(of_delay(found, "error_feedback")):
        values = sorted(rows["coefficient"].unique())
        if len(values) < 2:
            continue
        plain = _plain(found, rows)
        reason = "" if 1.0 in values else "λ=1 is missing"
        rule = near_best(values if 1.0 in values else [1.0])
        of_values = [_at(rows, value) for value in values]
        counts = optimizer in PAPER
        compared.append(Comparison(name, [plain, *of_values], rule, counts, reason))
    return compared


def _taylor(trials: pd.DataFrame) -> list[Comparison]:
    found = measured(trials)
    compared = []
    for optimizer, name, rows in of_points(of_delay(found, "taylor")):
        values = sorted(rows["coefficient"].unique())
        of_values = [_at(rows, value) for value in values]
        rule = NoHelp(tuple(values))
        compared.append(
            Comparison(name, [_plain(found, rows), *of_values], rule, optimizer in PAPER)
        )
    return compared


def _plain(found: pd.DataFrame, rows: pd.DataFrame) -> Row:
    """The plain delay at the point of these rows."""
    return row("delay", found[(found["arm"] == "delay") & found["point"].isin(rows["point"])])


def _at(rows: pd.DataFrame, coefficient: float) -> Row:
    return row(f"λ={coefficient:g}", rows[rows["coefficient"] == coefficient])


def _diverges(trials: pd.DataFrame) -> list[Comparison]:
    found = measured(trials)
    rows = found[(found["arm"] == "delay_ef_gradient") & found["optimizer"].isin(PAPER)]
    of_each = [
        row(
            f"{name}: share that diverged",
            group.assign(diverged=(group["status"] == Status.DIVERGED).astype(float)),
            "diverged",
        )
        for _, name, group in of_points(rows)
    ]
    return [Comparison("all trials", of_each, Diverges())] if of_each else []


CLAIMS = (
    Claim(
        "coefficient",
        "λ = 1 is near the best coefficient of Error Feedback",
        "figure 15 (135M: NorMuon's best is below 1, that of AdamW, Muon and SOAP slightly above)",
        ("coefficient", "overshoot"),
        "For each optimizer of which λ = 1 lowers the gap: the paired difference of the gaps at "
        f"λ = 1 and at each other λ is less than {SAME:.0%} of the plain gap, by 95 % intervals, "
        "and the λ of the smallest mean gap is not at the edge of the grid; contradicted where "
        "such a difference surely exceeds that.",
        _near_one,
    ),
    Claim(
        "taylor",
        "A Taylor compensation of the gradient does not help",
        "figure 14 (135M, Muon)",
        ("taylor",),
        "For each optimizer with a gap: every coefficient removes less than "
        f"{SAME:.0%} of it, by 95 % intervals of the paired difference, although the largest one "
        "changes the loss (the interval of its change does not hold 0, or trials diverge); "
        "contradicted where the interval of the share that one removes lies above 0 and its "
        "neighbours remove a positive share too.",
        _taylor,
    ),
    Claim(
        "gradient_feedback",
        "Error Feedback on raw gradients diverges",
        "figure 19 (135M)",
        ("gradient_feedback",),
        "Of the trials of the paper's optimizers whose sync completes, all counted together: more "
        "than half diverge, by an exact binomial test at 2.5 % (6 of 6, 8 of 9); contradicted "
        "where fewer than half do, by the same test.",
        _diverges,
    ),
)
