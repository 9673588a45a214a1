"""What the documents say of claims and of trials.

Verdicts are those of `analysis.claims`: no sentence here says more than a rule that was written
before the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import pandas as pd

from analysis import advise, load
from analysis.advice.advice import break_even
from analysis.claims import CLAIMS, Outcome, Verdict, audited, judged
from analysis.claims.claim import ClaimPart
from analysis.report.facts import MICROBATCHES, STAGES
from analysis.statistics.intervals import CONFIDENCE
from analysis.statistics.text import tax_text
from analysis.table.answers import ACCURACY, BITS, title
from analysis.table.names import REPORTED_ARMS, minus, prose
from analysis.table.names import optimizer as optimizer_name
from bench.documents.cells import table
from bench.documents.published import (
    DOCS,
    FRONT_ADVICE,
    LENGTHS,
    SCALES,
    of_sweep,
    published_scores,
    view,
)
from bench.documents.spike import by_published

MOST_PARTS, MOST_NUMBERS = 2, 3
"""Of a verdict, and of a part: what has more is named without its numbers, which a table has."""


@cache
def _judged(sweep: str, scale: str) -> Sequence[Verdict]:
    """The verdicts of the claims about a sweep, on its trials alone."""
    trials = of_sweep(sweep, scale).trials
    claims = [by_published(claim, scale) for claim in CLAIMS if sweep in claim.sweeps]
    return [judged(claim, trials) for claim in claims]


@cache
def verdict_table(scale: str = "tiny") -> str:
    """Each sweep by itself: what its claims come to, and how often their rules err."""
    rows = [
        [f"`{sweep}`", verdict.claim.statement, _outcome(verdict), _sure(audited(verdict))]
        for sweep in SCALES[scale]
        for verdict in _judged(sweep, scale)
    ]
    return table(["sweep", "claim", "verdict", "how sure"], rows)


def _outcome(verdict: Verdict) -> str:
    parts = f" ({verdict.summary})" if len(verdict.parts) > 1 else ""
    return f"**{verdict.outcome}**{parts}"


def _sure(verdict: Verdict) -> str:
    return verdict.doubt or verdict.parts[0].why


def contradicted(scale: str = "tiny") -> str:
    """One line: the claims that are, and of which sweep."""
    all_of_them = [(sweep, one) for sweep in SCALES[scale] for one in _judged(sweep, scale)]
    against = [
        f"*{verdict.claim.statement}* (`{sweep}`)"
        for sweep, verdict in all_of_them
        if verdict.outcome == Outcome.CONTRADICTED
    ]
    decided = sum(verdict.outcome != Outcome.UNDECIDED for _, verdict in all_of_them)
    nothing = f"nothing, with {decided} of {len(all_of_them)} verdicts decided"
    return f"Against the paper at this scale: {'; '.join(against) or nothing}."


def verdicts(sweep: str, *names: str, scale: str = "tiny") -> str:
    """One point of a list per claim about the sweep, or of these alone: its outcome, its words, and
    its parts by their outcome."""
    found = [one for one in _judged(sweep, scale) if not names or one.claim.name in names]
    return "\n".join(map(_verdict, found))


def _verdict(verdict: Verdict) -> str:
    words = _words if len(verdict.parts) > MOST_PARTS else _with_numbers
    others = [f"{_words(part)} ({part.outcome})" for part in verdict.others]
    beside = f" Not in the paper: {'; '.join(others)}." if others else ""
    return (
        f"- **{str(verdict.outcome).capitalize()}**: *{verdict.claim.statement}*. "
        f"{' '.join(_by_outcome(verdict.parts, words))}{beside}"
    )


def _by_outcome(parts: Sequence[ClaimPart], words: Callable[[ClaimPart], str]) -> Iterator[str]:
    for outcome in Outcome:
        if said := [words(part) for part in parts if part.outcome == outcome]:
            yield f"{str(outcome).capitalize()}: {'; '.join(said)}."


def _words(part: ClaimPart) -> str:
    return prose(part.what)


def _with_numbers(part: ClaimPart) -> str:
    numbers = [*map(str, part.numbers)]
    shown = numbers if len(numbers) <= MOST_NUMBERS else []
    more = "; ".join(filter(None, [*shown, part.why]))
    return prose(f"{part.what} ({more})" if more else part.what)


def counts(file: str) -> str:
    """How many trials a file lists, and how long they are."""
    trials = load(DOCS / f"{file}.csv")
    lengths = [str(length) for length in sorted({*trials["num_updates_asked"]})]
    updates = " or ".join(filter(None, [", ".join(lengths[:-1]), lengths[-1]]))
    return f"{len(trials)} trials of {updates} updates: [{file}.csv]({file}.csv)."


def made_twice(file: str, other: str) -> str:
    """How far trials that two files have, which were run apart, ended from each other."""
    both = load(DOCS / f"{file}.csv").merge(load(DOCS / f"{other}.csv"), on="trial_id")
    apart = (both["final_val_loss_x"] - both["final_val_loss_y"]).abs().max()
    return (
        f"{len(both)} of them had been run for [{other}.csv]({other}.csv) too: the largest "
        f"difference of their final losses is {apart:g}."
    )


def may_i() -> str:
    """What the README's job advises each optimizer, with the longer runs that settle it."""
    trials = view(FRONT_ADVICE).trials
    optimizers = sorted({*trials["optimizer"]})
    found = [
        advise(trials, optimizer=of, stages=STAGES, microbatches=MICROBATCHES) for of in optimizers
    ]
    lines = [
        f"- {optimizer_name(of.optimizer)}, against {of.rival}: **{of.verdict.word}**; "
        f"{of.verdict.why}."
        for of in found
    ]
    return minus("\n".join(lines))


def same_time() -> str:
    """The delayed run of Muon that takes as long as sync on 4 stages with 8 microbatches."""
    trials = view(LENGTHS).trials
    found = advise(trials, optimizer="muon", stages=4, microbatches=8, updates=400)
    at = found.same_time["ZB-H1"]
    low, high = at.interval
    assert found.gap is not None
    tax = tax_text(found.gap.tax._asdict())
    return (
        f"Final losses say otherwise: delayed runs of {at.updates:.0f} updates, which take as long "
        f"as the {at.sync_updates:.0f} of sync against ZB-H1, ended {at.gap:+.4f} [{low:+.4f}, "
        f"{high:+.4f}] from sync (n={at.n}), and the token tax is {tax}, below the speed-up of "
        f"{found.speed_ups['ZB-H1']:.3f}. Against ZB-V the speed-up is "
        f"{found.speed_ups['ZB-V']:.3f}: {break_even(found.gap.tax, found.speed_ups['ZB-V'])}."
    ).replace("-0", "−0")


def downstream() -> str:
    """Of each model, how many published intervals of differences do not hold 0, and which."""
    found = published_scores()
    found = found[found["measure"].isin([ACCURACY, BITS]) & found["low"].notna()]
    return "\n".join(f"- {model}: {_outside(rows)}." for model, rows in found.groupby("model"))


def _outside(found: pd.DataFrame) -> str:
    outside = found[(found["low"] > 0) | (found["high"] < 0)]
    named = [
        f"{optimizer_name(optimizer)}, {REPORTED_ARMS[str(arm)]}: "
        f"{str(measure).replace('_', ' ')} in {', '.join(map(title, rows['task']))}"
        for (optimizer, arm, measure), rows in outside.groupby(["optimizer", "arm", "measure"])
    ]
    expected = (1 - CONFIDENCE) * len(found)
    which = f" ({'; '.join(named)})" if named else ""
    return (
        f"of {len(found)} intervals of accuracy and of bits per byte {len(outside)} do not hold "
        f"0{which}; were there no difference, {expected:.0f} would be expected"
    )
