"""Numbers of others beside ours: every public function is a call. Rules were written before the
runs: of `statements` in findings/others/sweep.yaml, of `triple` in conf/sweep/families.yaml, of
`flush` in findings/flush/sweep.yaml."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.statistics.intervals import mean_interval, ratio_interval
from analysis.table.names import minus
from analysis.table.names import optimizer as name
from findings.code import cells
from findings.code.cells import Groups, Markdown, TrialGroup, groups, mean, sign, table
from findings.code.published import FINDINGS, TINY, View, of_sweep, read

SWEEP = "others"
NO_CHANGE = 0.05
"""A share of the gap that counts as nothing."""
HYBRID = "tiny_hybrid"
MICROBATCHES = "pipeline.num_microbatches"
ALIKE = 0.03
"""Nats per token on both sides of 0 within which PACI ends about where a flush does."""
LITTLE = 0.2
"""A share of the gap below which Error Feedback gives all of the loss back."""


class Statement(NamedTuple):
    """What numbers of others say, with its interval here, in which the rule finds `outcome`."""

    text: str
    measured: str
    outcome: str


def _reported() -> pd.DataFrame:
    return pd.read_csv(FINDINGS / SWEEP / "reported.csv")


def _measured() -> dict[str, TrialGroup]:
    """Optimizer → its trials."""
    return {optimizer: group for (optimizer,), group in groups(of_sweep(SWEEP, TINY)).items()}


def reported() -> Markdown:
    """One row per number of marin's, beside ours."""
    measured, rows = _measured(), []
    for row in _reported().to_dict("records"):
        arm = str(row["arm"])
        method = "weight prediction" if arm.endswith("weight_prediction") else "plain"
        share = "" if pd.isna(row["removed"]) else f"{100 * row['removed']:.0f} %"
        said = [name(row["optimizer"]), str(row["delay"]), method, f"{row['gap']:+.3f}", share]
        own = measured[row["optimizer"]].arms[arm]
        rows.append([*said, cells.gap(own), cells.removed(own)])
    heads = ["optimizer", "delay", "remedy", "marin: gap", "removed", "here: gap", "removed"]
    return table(heads, rows)


def statements() -> Markdown:
    """One row per statement that marin's numbers make, with our interval and what the rule says."""
    rows = _statements(_measured(), _reported())
    return table(["marin's numbers say", "here", "verdict"], rows)


def triple(trials: str) -> Markdown:
    """One row per statement that the paper's losses of its hybrid make of those in a table."""
    rows: list[Statement] = []
    of_table = read(trials)
    hybrids = View(of_table[of_table["model"] == HYBRID])
    for (optimizer,), group in groups(hybrids).items():
        title = name(optimizer)
        cost, left = map(group.gap, ("delay", "delay_ef"))
        rows += [
            _above(f"{title}: a delay of one update costs loss", cost),
            _above(f"{title}: Error Feedback gives loss back", cost - left),
            _within(
                f"{title}: it leaves less than a fifth of the gap", left, cost, -np.inf, LITTLE
            ),
        ]
    return table(["the paper's losses say", "here", "verdict"], rows)


def flush() -> Markdown:
    """One row per statement about PACI beside a flush."""
    rows = _flush(groups(of_sweep("flush", TINY), MICROBATCHES))
    return table(["statement", "gap of PACI here", "verdict"], rows)


def _flush(of: Groups) -> Iterator[Statement]:
    gaps = {num: group.gap("paci") for (_, num), group in of.items()}
    for num, gap in gaps.items():
        low, high = mean_interval(gap.dropna().to_numpy())
        is_apart = low > ALIKE or high < -ALIKE
        outcome = "disagrees" if is_apart else "agrees" if max(-low, high) < ALIKE else "open"
        said = f"with {num} microbatches PACI ends about where a flush does"
        yield Statement(said, mean(gap), f"**{outcome}**")
    few, many = sorted(gaps)
    yield _above(
        f"{many} microbatches help PACI: the gap with {few} minus that", gaps[few] - gaps[many]
    )


def agreement() -> str:
    """How many of the statements agree, disagree and are open."""
    outcomes = [statement.outcome for statement in _statements(_measured(), _reported())]
    counts = [outcomes.count(f"**{outcome}**") for outcome in ("agrees", "disagrees", "open")]
    return "Of {} statements: {} agree, {} disagree, {} open.".format(len(outcomes), *counts)


def _statements(of: dict[str, TrialGroup], theirs: pd.DataFrame) -> Iterator[Statement]:
    plain = theirs[theirs["removed"].isna()]
    delays = {str(key): sorted(rows["delay"]) for key, rows in plain.groupby("optimizer")}
    for optimizer, own in delays.items():
        losses = of[optimizer].losses
        for delay in own:
            cost = of[optimizer].gap(_late(delay))
            yield _above(f"{name(optimizer)}: a delay of {delay} costs loss", cost)
        for less, more in pairwise(own):
            apart = losses[_late(more)] - losses[_late(less)]
            yield _above(f"{name(optimizer)}: a delay of {more} costs more than {less}", apart)
    for delay in sorted({*delays["muon"]} & {*delays["adamh"]}):
        adamh, muon = (of[optimizer].gap(_late(delay)) for optimizer in ("adamh", "muon"))
        yield _above(f"a delay of {delay} costs AdamH more than Muon", adamh - muon)
    for row in theirs[theirs["removed"].notna()].to_dict("records"):
        losses = of[row["optimizer"]].losses
        saved = losses[_late(row["delay"])] - losses[row["arm"]]
        said = f"{name(row['optimizer'])}: weight prediction helps at a delay of {row['delay']}"
        yield _above(said, saved)
    shares = {delay: _shares(of["muon"], delay) for delay in delays["muon"]}
    for less, more in pairwise(delays["muon"]):
        said = f"Muon: it removes a larger share at a delay of {less} than at {more}"
        yield _above(said, shares[less] - shares[more])
    said = "it removes a larger share of Muon's gap than of AdamH's at a delay of 8"
    yield _above(said, shares[8] - _shares(of["adamh"], 8))
    for optimizer in delays:
        yield _nothing(optimizer, of[optimizer])


def _late(delay: int) -> str:
    return f"constant_delay({delay})"


def _shares(group: TrialGroup, delay: int) -> pd.Series:
    """What weight prediction removes of a delay's gap, seed by seed."""
    left = group.gap(f"{_late(delay)}_weight_prediction")
    return 1 - left / group.gap(_late(delay))


def _above(text: str, differences: pd.Series) -> Statement:
    """The statement that a mean of paired differences lies above 0."""
    outcome = {1: "agrees", -1: "disagrees", 0: "open"}[sign(differences)]
    return Statement(text, mean(differences), f"**{outcome}**")


def _nothing(optimizer: str, group: TrialGroup, delay: int = 8) -> Statement:
    """The statement that DC-ASGD with a coefficient of 1 removes none of the gap of a delay."""
    plain = group.gap(_late(delay))
    saved = plain - group.gap(f"{_late(delay)}_taylor(1)")
    text = f"{name(optimizer)}: DC-ASGD with λ = 1 changes nothing at a delay of {delay}"
    return _within(text, saved, plain, -NO_CHANGE, NO_CHANGE)


def _within(text: str, part: pd.Series, whole: pd.Series, least: float, most: float) -> Statement:
    """The statement that the ratio of two means of paired differences lies between two shares.

    Where the second may be 0, the ratio has no interval, and is not shown.
    """
    both = pd.concat([part, whole], axis=1).dropna().to_numpy()
    low, high = ratio_interval(both[:, 0], both[:, 1])
    if low > least and high < most:
        outcome = "agrees"
    else:
        outcome = "disagrees" if low > most or high < least else "open"
    share = np.array([both[:, 0].mean() / both[:, 1].mean(), low, high]) * 100
    said = "" if np.isnan(low) else minus("{:.1f} % [{:.1f}, {:.1f}]".format(*share))
    return Statement(text, said, f"**{outcome}**")
