"""What rules that were written before the runs say of gaps: every public function is a call.

The rules are of marin's numbers and ours in findings/others/sweep.yaml, of delays in
findings/delays/sweep.yaml, of `triple` in conf/sweep/families.yaml, of `flush` in
findings/flush/sweep.yaml.
"""

from collections.abc import Iterator
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.statistics.intervals import mean_interval, ratio_interval
from analysis.table.names import minus
from analysis.table.names import optimizer as name
from findings.code import cells
from findings.code.cells import Groups, Markdown, TrialGroup, groups, mean, sign, table
from findings.code.published import FINDINGS, TINY, View, of_sweep, read

ARMS = {1: "delay", **{delay: f"constant_delay({delay})" for delay in (2, 4, 8, 16)}}
"""Delay in updates → its arm without a remedy, in the sweep `delays`."""
NO_CHANGE = 0.05
"""A share of the gap that counts as nothing."""
HYBRID = "tiny_hybrid"
MICROBATCHES = "pipeline.num_microbatches"
ALIKE = 0.03
"""Nats per token on both sides of 0 within which PACI ends about where a flush does."""
LITTLE = 0.2
"""A share of the gap below which Error Feedback gives all of the loss back."""


def _of(sweep: str) -> dict[str, TrialGroup]:
    """Optimizer → its trials."""
    return {optimizer: group for (optimizer,), group in groups(of_sweep(sweep, TINY)).items()}


def growth() -> Markdown:
    """One row per optimizer: what the next delay costs more, and whether the gap grows faster than
    the delay."""
    words = {1: ", faster", 0: "", -1: ", slower"}
    rows = [
        [name(optimizer), *(mean(more) + words[pace] for _, more, pace in _steps(group))]
        for optimizer, group in _of("delays").items()
    ]
    return table(["optimizer", *(f"{less} to {more}" for less, more in pairwise(ARMS))], rows)


def grown() -> str:
    """How many of all steps from a delay to the next grow, and grow faster or slower than it."""
    steps = [step for group in _of("delays").values() for step in _steps(group)]
    signs = [sign(more) for _, more, _ in steps]
    early = [pace for less, _, pace in steps if less < 4]
    late = [pace for less, _, pace in steps if less == 8]
    return (
        f"Of {len(signs)} steps {signs.count(1)} surely grow, {signs.count(0)} are open and "
        f"{signs.count(-1)} surely shrink. Of {len(early)} steps up to a delay of 4, "
        f"{early.count(1)} are surely faster than the delay and {early.count(-1)} slower; of "
        f"{len(late)} from 8 to 16, {late.count(1)} and {late.count(-1)}."
    )


def _steps(group: TrialGroup) -> Iterator[tuple[int, pd.Series, int]]:
    """Yields of each delay but the last what the next one costs more, and whether the gap grows
    faster than the delay (1), slower (−1) or neither is seen (0)."""
    for less, more in pairwise(ARMS):
        small, large = (group.gap(ARMS[delay]) for delay in (less, more))
        yield less, large - small, sign(large - small * (more / less))


def helped(remedy: str) -> Markdown:
    """One row per delay: the optimizers that a remedy helps, harms, and neither."""
    rows = []
    for delay, arm in ARMS.items():
        signs = {
            name(optimizer): sign(group.losses[arm] - group.losses[f"{arm}_{remedy}"])
            for optimizer, group in _of("delays").items()
        }
        by_sign = ([of for of in signs if signs[of] == wanted] for wanted in (1, -1, 0))
        rows.append([str(delay), *map(", ".join, by_sign)])
    return table(["delay", "helps", "harms", "neither is seen"], rows)


def robust(fragile: str, others: str) -> Markdown:
    """One row per pair: by how much a delay costs a fragile optimizer more than another one.

    Both arguments are names with commas between them.
    """
    rows = [[pair, *map(mean, apart)] for pair, apart in _pairs(fragile, others)]
    return table(["gap of", *map(str, ARMS)], rows)


def more_fragile(fragile: str, others: str) -> str:
    """In how many of the cells of `robust` the fragile optimizer's gap is larger or smaller."""
    signs = [sign(cell) for _, apart in _pairs(fragile, others) for cell in apart]
    return (
        f"Of {len(signs)} differences {signs.count(1)} surely lie above 0, {signs.count(0)} are "
        f"open and {signs.count(-1)} lie below."
    )


def _pairs(fragile: str, others: str) -> Iterator[tuple[str, list[pd.Series]]]:
    """Yields the name of each pair and the differences of its gaps by delay."""
    of = _of("delays")
    for one, other in product(fragile.split(","), others.split(",")):
        apart = [of[one].gap(arm) - of[other].gap(arm) for arm in ARMS.values()]
        yield f"{name(one)} minus {name(other)}", apart


class Statement(NamedTuple):
    """What numbers of others say, with its interval here, in which the rule finds `outcome`."""

    text: str
    measured: str
    outcome: str


def _reported() -> pd.DataFrame:
    return pd.read_csv(FINDINGS / "others" / "reported.csv")


def reported() -> Markdown:
    """One row per number of marin's, beside ours."""
    measured, rows = _of("others"), []
    for row in _reported().to_dict("records"):
        method = "weight prediction" if row["arm"].endswith("weight_prediction") else "plain"
        share = "" if pd.isna(row["removed"]) else f"{100 * row['removed']:.0f} %"
        said = [name(row["optimizer"]), str(row["delay"]), method, f"{row['gap']:+.3f}", share]
        own = measured[row["optimizer"]].arms[row["arm"]]
        rows.append([*said, cells.gap(own), cells.removed(own)])
    heads = ["optimizer", "delay", "remedy", "marin: gap", "removed", "here: gap", "removed"]
    return table(heads, rows)


def statements() -> Markdown:
    """One row per statement that marin's numbers make, with our interval and what the rule says."""
    return table(["marin's numbers say", "here", "verdict"], _of_marin())


def agreement() -> str:
    """How many of the statements agree, disagree and are open."""
    outcomes = [statement.outcome for statement in _of_marin()]
    counts = [outcomes.count(f"**{outcome}**") for outcome in ("agrees", "disagrees", "open")]
    return "Of {} statements: {} agree, {} disagree, {} open.".format(len(outcomes), *counts)


def _of_marin() -> Iterator[Statement]:
    of, theirs = _of("others"), _reported()
    is_plain = theirs["removed"].isna()
    by_optimizer = theirs[is_plain].groupby("optimizer")["delay"]
    delays = {str(optimizer): sorted(rows) for optimizer, rows in by_optimizer}

    def gap(optimizer: str, delay: int, remedy: str = "") -> pd.Series:
        return of[optimizer].gap(f"constant_delay({delay}){remedy}")

    def share(optimizer: str, delay: int) -> pd.Series:
        """What weight prediction removes of a delay's gap, seed by seed."""
        return 1 - gap(optimizer, delay, "_weight_prediction") / gap(optimizer, delay)

    for optimizer, own in delays.items():
        for delay in own:
            yield _above(f"{name(optimizer)}: a delay of {delay} costs loss", gap(optimizer, delay))
        for less, more in pairwise(own):
            apart = gap(optimizer, more) - gap(optimizer, less)
            yield _above(f"{name(optimizer)}: a delay of {more} costs more than {less}", apart)
    for delay in sorted({*delays["muon"]} & {*delays["adamh"]}):
        apart = gap("adamh", delay) - gap("muon", delay)
        yield _above(f"a delay of {delay} costs AdamH more than Muon", apart)
    for row in theirs[~is_plain].to_dict("records"):
        optimizer, delay = row["optimizer"], row["delay"]
        saved = gap(optimizer, delay) - of[optimizer].gap(row["arm"])
        said = f"{name(optimizer)}: weight prediction helps at a delay of {delay}"
        yield _above(said, saved)
    for less, more in pairwise(delays["muon"]):
        said = f"Muon: it removes a larger share at a delay of {less} than at {more}"
        yield _above(said, share("muon", less) - share("muon", more))
    said = "it removes a larger share of Muon's gap than of AdamH's at a delay of 8"
    yield _above(said, share("muon", 8) - share("adamh", 8))
    for optimizer in delays:
        said = f"{name(optimizer)}: DC-ASGD with λ = 1 changes nothing at a delay of 8"
        saved = gap(optimizer, 8) - gap(optimizer, 8, "_taylor(1)")
        yield _within(said, saved, gap(optimizer, 8), -NO_CHANGE, NO_CHANGE)


def triple(trials: str) -> Markdown:
    """One row per statement that the paper's losses of its hybrid make of those in a table."""
    rows: list[Statement] = []
    of_table = read(trials)
    hybrids = View(of_table[of_table["model"] == HYBRID])
    for (optimizer,), group in groups(hybrids).items():
        title = name(optimizer)
        cost, left = map(group.gap, ("delay", "delay_ef"))
        said = f"{title}: it leaves less than a fifth of the gap"
        rows += [
            _above(f"{title}: a delay of one update costs loss", cost),
            _above(f"{title}: Error Feedback gives loss back", cost - left),
            _within(said, left, cost, -np.inf, LITTLE),
        ]
    return table(["the paper's losses say", "here", "verdict"], rows)


def flush() -> Markdown:
    """One row per statement about PACI beside a flush."""
    rows = _flush(groups(of_sweep("flush", TINY), MICROBATCHES))
    return table(["statement", "gap of PACI here", "verdict"], rows)


def _flush(of: Groups) -> Iterator[Statement]:
    gaps = {num: group.gap("paci") for (_, num), group in of.items()}
    for num, gap in gaps.items():
        said = f"with {num} microbatches PACI ends about where a flush does"
        outcome = _place(*mean_interval(gap.dropna().to_numpy()), -ALIKE, ALIKE)
        yield Statement(said, mean(gap), outcome)
    few, many = sorted(gaps)
    said = f"{many} microbatches help PACI: the gap with {few} minus that"
    yield _above(said, gaps[few] - gaps[many])


def _above(text: str, differences: pd.Series) -> Statement:
    """The statement that a mean of paired differences lies above 0."""
    outcome = {1: "agrees", -1: "disagrees", 0: "open"}[sign(differences)]
    return Statement(text, mean(differences), f"**{outcome}**")


def _within(text: str, part: pd.Series, whole: pd.Series, least: float, most: float) -> Statement:
    """The statement that the ratio of two means of paired differences lies between two shares.

    Where the second may be 0, the ratio has no interval, and is not shown.
    """
    both = pd.concat([part, whole], axis=1).dropna().to_numpy()
    low, high = ratio_interval(both[:, 0], both[:, 1])
    share = np.array([both[:, 0].mean() / both[:, 1].mean(), low, high]) * 100
    said = "" if np.isnan(low) else minus("{:.1f} % [{:.1f}, {:.1f}]".format(*share))
    return Statement(text, said, _place(low, high, least, most))


def _place(low: float, high: float, least: float, most: float) -> str:
    """What the rule says of an interval: whether it lies between two numbers."""
    if low > least and high < most:
        return "**agrees**"
    return "**disagrees**" if low > most or high < least else "**open**"
