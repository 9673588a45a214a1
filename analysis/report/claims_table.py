"""The verdicts of a report as a table, with the error rates of their rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from analysis.claims import Verdict
from analysis.report.page.page import Chapter

RATES = ("reproduced_if_false", "contradicted_if_true", "decided_if_placebo", "power", "decided")
"""Rates of an audit (`analysis.claims.audit`), each with the ends of its 95 % interval."""
COLUMNS = [
    *("scale", "claim", "place", "verdict", "part", "counts", "says", "numbers", "why"),
    *(f"{name}{end}" for name in RATES for end in ("", "_low", "_high")),
    *("seeds_to_decide", "rule"),
]


def claims_table(chapters: Sequence[Chapter]) -> pd.DataFrame:
    """One row per part of a claim and scale; columns: COLUMNS.

    `counts`: whether the part judges the paper; those of other optimizers do not. The rates are of
    the claim; `seeds_to_decide` is missing where more than were tried are needed.
    """
    rows = [
        {"scale": chapter.title, **row}
        for chapter in chapters
        for verdict in chapter.verdicts
        for row in _of_claim(verdict)
    ]
    return pd.DataFrame(rows, columns=COLUMNS).astype({"seeds_to_decide": "Int64"})


def _of_claim(verdict: Verdict) -> Iterator[dict[str, object]]:
    rates = _rates(verdict)
    for counts, parts in ((True, verdict.parts), (False, verdict.others)):
        for part in parts:
            yield {
                "claim": verdict.claim.statement,
                "place": verdict.claim.place,
                "verdict": verdict.outcome,
                "part": part.what,
                "counts": counts,
                "says": part.outcome,
                "numbers": "; ".join(map(str, part.numbers)),
                "why": part.why,
                **rates,
                "rule": verdict.claim.rule,
            }


def _rates(verdict: Verdict) -> dict[str, object]:
    if verdict.audit is None:
        return {}
    found: dict[str, object] = {"seeds_to_decide": verdict.audit.seeds}
    for name in RATES:
        rate = getattr(verdict.audit, name)
        low, high = rate.interval
        found |= {name: rate.share, f"{name}_low": low, f"{name}_high": high}
    return found
