"""Our law of the token tax beside what was measured: every public function is a call."""

import math
from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np

from analysis.forecast.answer import tax_text
from analysis.forecast.forecast import Forecaster
from analysis.forecast.ladder import Ladder, ladders
from analysis.forecast.register import Check, checks
from analysis.forecast.register import score as score_text
from analysis.forecast.register import text as checks_text
from analysis.statistics.tax import reported_taxes
from analysis.table.names import REPORTED_ARMS, minus
from analysis.table.names import optimizer as name
from findings.code.cells import Markdown, table
from findings.code.published import FINDINGS, view

RECORDS = FINDINGS / "forecasts"
RUNGS = {
    "ours, 0.1M, same decay": "same_decay",
    "ours, 0.1M": "ladder tiny",
    "ours, 0.4M": "second_rung few_updates",
}
"""Whose runs → their trials."""
UPDATES: Mapping[str, int] = {
    "paper, 360M": 27_604,
    "marin, 130M MoE, T = 6,000": 6_000,
    "marin, 130M MoE, T = 15,000": 15_000,
}
"""Who → updates of the run. The paper's: 20 tokens per parameter in batches of 256 x 1,024."""
OURS = {"pipedream": "delay"}
"""An arm of theirs → the arm of ours that is nearest to it."""
SEEDS = 3


def forecasts() -> Markdown:
    """The registered forecasts beside what was measured since."""
    return Markdown(checks_text(_checks()))


def score() -> str:
    """How many registered forecasts held."""
    return score_text(_checks())


def _checks() -> list[Check]:
    trials = view("forecast", "second_rung few_updates", "ladder tiny").trials
    return checks(RECORDS, trials)


@cache
def _ladders(trials: str) -> Mapping[tuple[str, str], Ladder]:
    """Optimizer and arm → the ladder of some trials."""
    rows = view(trials).trials
    return {
        (optimizer, ladder.arm): ladder
        for optimizer in sorted(set(rows["optimizer"]))
        for ladder in ladders(rows, optimizer)
    }


@cache
def _forecaster(whose: str, optimizer: str, arm: str) -> Forecaster:
    return Forecaster(_ladders(RUNGS[whose])[optimizer, arm])


def beside_others() -> Markdown:
    """The token taxes of others, and what our laws say at as many updates of our own runs."""
    rows = []
    for row in reported_taxes().to_dict("records"):
        who, optimizer, arm = row["who"], row["optimizer"], row["arm"]
        ours = [_at(whose, optimizer, OURS.get(arm, arm), UPDATES[who]) for whose in RUNGS]
        theirs = [who, _words(optimizer, arm), f"{UPDATES[who]:,}", f"{row['tax']:.2f}"]
        rows.append([*theirs, *ours])
    return table(["who", "optimizer, arm", "updates", "their tax", *RUNGS], rows)


def _words(optimizer: str, arm: str) -> str:
    return f"{name(optimizer)}, {REPORTED_ARMS.get(arm, arm)}"


def _at(whose: str, optimizer: str, arm: str, updates: int) -> str:
    """Our tax in runs of so many updates, of the smallest batch among the rungs."""
    rungs = _ladders(RUNGS[whose])
    if (optimizer, arm) not in rungs:
        return ""
    _, batch, parameters = rungs[optimizer, arm].settings.min(0)
    settings = np.array([[updates, batch, parameters]])
    return tax_text(_forecaster(whose, optimizer, arm).at(settings, SEEDS)[0])


def exponents() -> Markdown:
    """p and q of tax - 1 ~ T^-p B^q: of our laws, and p between marin's two horizons."""
    heads = ["who", "optimizer, arm", "p [95 %]", "q [95 %]", "from"]
    return table(heads, [*_ours(), *_theirs()])


def _ours() -> Iterator[list[str]]:
    for whose, trials in RUNGS.items():
        for (optimizer, arm), ladder in _ladders(trials).items():
            forecaster = _forecaster(whose, optimizer, arm)
            form = forecaster.forms[0].form
            lengths = sorted({rung.updates for rung in ladder.rungs})
            said = f"{len(lengths)} lengths, {lengths[0]:,} to {lengths[-1]:,} updates"
            exponents = (_exponent(forecaster, letter) for letter in ("p", "q"))
            yield [whose, _words(optimizer, arm), *exponents, f"{said}, {form}"]


def _exponent(forecaster: Forecaster, letter: str) -> str:
    """The exponent of the form that foretells best, with its interval; empty if the ladder does not
    vary it."""
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
            said = f"2 lengths, {short:,} and {long:,} updates"
            yield ["marin", _words(str(optimizer), str(arm)), f"{p:+.2f}", "", said]


def conversions() -> str:
    """Where the taxes of others are from, and how each was converted."""
    sources = reported_taxes().drop_duplicates(["source", "converted"])
    return "\n".join(
        f"- {row['who'].partition(',')[0].capitalize()} ({row['source']}): {row['converted']}."
        for row in sources.to_dict("records")
    )
