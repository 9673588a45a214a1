"""The theory beside what was measured, without a fit: every public function is a call."""

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import permutations
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from analysis.statistics.intervals import CONFIDENCE, UNKNOWN
from analysis.statistics.tax import reported_taxes
from analysis.table.names import optimizer as name
from analysis.theory.stability import Stability
from analysis.theory.stability import table as limits_table
from findings.code import cells
from findings.code.cells import K, Markdown, expected, groups, table
from findings.code.published import FEW, FINDINGS, TINY, of_sweep

RANKED_BY = {
    "limit": "sync / delay",
    "noise": f"noise at k = {K:g}",
    "fed": "EF / delay",
    "share": f"removed of the noise at k = {K:g}",
    "inverse": "1 / limit",
}
"""Column of the theory → its name in the table of ranks."""
MOST = 9
"""Pairs of which every order is tried."""


class RankCorrelation(NamedTuple):
    """Spearman's rank correlation of n pairs, with its 95 % interval.

    The interval is that of Fisher's z with the variance of Bonett and Wright (2000); unknown for
    n < 4 and where |ρ| is 1. `p` is exact: the share of all orders of one side whose correlation is
    at least as far from 0.
    """

    rho: float
    low: float
    high: float
    p: float
    n: int

    def __str__(self) -> str:
        """Spearman's ρ with the interval, where that is known."""
        interval = "" if math.isnan(self.low) else f" [{self.low:+.2f}, {self.high:+.2f}]"
        return f"{self.rho:+.2f}{interval}"


def _rank_correlation(predicted: Sequence[float], measured: Sequence[float]) -> RankCorrelation:
    """The correlation of 2 to MOST pairs; ties have their mean rank. Raises ValueError for other
    numbers of pairs, and where all values of a side are equal, which ranks nothing."""
    n = len(predicted)
    if not 2 <= n <= MOST or 1 in (len({*predicted}), len({*measured})):
        raise ValueError(f"no ranks of 2 to {MOST} pairs: {list(predicted)}, {list(measured)}")
    first, second = (stats.zscore(stats.rankdata(values)) for values in (predicted, measured))
    rho = float(first @ second / n)
    orders = np.array(list(permutations(second))) @ first / n
    low, high = UNKNOWN
    if n >= 4 and abs(rho) < 1 - 1e-9:
        half = stats.norm.ppf((1 + CONFIDENCE) / 2) * math.sqrt((1 + rho**2 / 2) / (n - 3))
        low, high = (math.tanh(math.atanh(rho) + side * half) for side in (-1, 1))
    return RankCorrelation(rho, low, high, float(np.mean(np.abs(orders) >= abs(rho) - 1e-9)), n)


def limits() -> Markdown:
    """The limits of the optimizers of the sweep `optimizers`, with the settings of conf/."""
    names = sorted({*of_sweep("optimizers", FEW).trials["optimizer"]})
    ordered = sorted(map(expected, names), key=lambda of: of.sync_over_delayed)
    return Markdown(limits_table(ordered))


def _numbers(theory: Stability) -> dict[str, float]:
    """Columns of RANKED_BY."""
    limits = {"limit": theory.sync_over_delayed, "fed": theory.corrected_over_delayed}
    inverse = 1 / theory.corrected if theory.corrected else math.inf
    noise = {"noise": theory.noise_delayed, "share": theory.noise_removed}
    return {**limits, **noise, "inverse": inverse}


@cache
def _predicted(sweep: str, scale: str, *keys: str, over: bool = False) -> pd.DataFrame:
    """One row per group of a sweep and arm with a delay, plain or with Error Feedback of lag 1: the
    columns of the table of gaps, the `plain_gap` of the delay, and the theory's numbers.

    The coefficient of the plain delay is 0. A schedule of the optimizer's own counts as it stands
    after the run, or, if `over`, as it ends.
    """
    rows = [
        {**row, "plain_gap": group.arms["delay"]["gap"], **_numbers(group.theory(arm, over))}
        for group in groups(of_sweep(sweep, scale), *keys).values()
        if group.is_linear()
        for arm, row in group.arms.items()
        if arm == "delay" or row["method"] == "error_feedback"
    ]
    return pd.DataFrame(rows).fillna({"coefficient": 0.0})


def _fed(sweep: str, scale: str = TINY, *, over: bool = False) -> pd.DataFrame:
    """The rows of `_predicted` with Error Feedback."""
    rows = _predicted(sweep, scale, over=over)
    return rows[rows["method"] == "error_feedback"]


def noise_inside(sweep: str) -> str:
    """How many shares of the gap have the share of the noise within their interval."""
    rows = _fed(sweep)
    within = rows["share"].between(rows["removed_low"], rows["removed_high"]).sum()
    return f"Of {len(rows)} shares, {within} have the theory's within their 95 % interval."


def ranks() -> Markdown:
    """Every ranking that the published sweeps allow, also those that fail."""
    lines = []
    for what, by, rows, measured in _rankings():
        rank = _rank_correlation([*rows[by]], [*rows[measured]])
        line = [what, RANKED_BY[by], str(rank.n), str(rank), f"{rank.p:.2g}"]
        lines.append([cell.replace("-", "−") for cell in line])
    return table(["measured", "ranked by", "n", "Spearman's ρ [95 %]", "p"], lines)


def _rankings() -> Iterator[tuple[str, str, pd.DataFrame, str]]:
    """What is ranked, by which column of the rows, the rows, and the column that is measured."""
    for over, when in ((False, ""), (True, " (NAdamW's momentum as it ends)")):
        rows = _fed("optimizers", FEW, over=over)
        yield f"gap of the delay, by optimizer{when}", "limit", rows, "plain_gap"
        yield f"share that EF removes{when}", "fed", rows, "removed"
    for by in ("limit", "noise"):
        yield "gap of the delay at `tiny`, by optimizer", by, _fed("shared_rate"), "plain_gap"
    for by in ("fed", "share"):
        yield "share that EF removes at `tiny`", by, _fed("shared_rate"), "removed"
    for value, rows in _fed("noise").dropna(subset=["removed"]).groupby("coefficient"):
        yield f"the same at λ = {value:g}, in `noise`", "share", rows, "removed"
    taxes = reported_taxes().query("arm == 'delay' and who.str.startswith('paper')")
    theory = pd.DataFrame(map(_numbers, map(expected, taxes["optimizer"])), index=taxes.index)
    for by in ("limit", "noise"):
        yield "token tax in the paper, 360M, by optimizer", by, taxes.join(theory), "tax"
    for optimizer, rows in _predicted("momentum", FEW, "optimizer.momentum").groupby("optimizer"):
        yield f"gap of {name(optimizer)}, by momentum", "limit", rows, "gap"
    for optimizer, rows in _predicted("coefficient", FEW).groupby("optimizer"):
        yield f"gap of {name(optimizer)} with EF, by λ", "inverse", rows, "gap"


def gaps_over_the_grid() -> str:
    """The gaps over batch sizes and rates, of which the ratio says nothing."""
    rows = of_sweep("batch_size", FEW).gaps.query("n > 0 and method == 'none'")
    said = []
    for optimizer, group in rows.groupby("optimizer"):
        least, *_, most = map(cells.gap, group.sort_values("gap").to_dict("records"))
        said.append(f"{name(optimizer)}'s gap from {least} to {most}")
    return f"In the sweep over batch sizes and learning rates, {' and '.join(said)}."


def best_coefficients() -> Markdown:
    """The λ of the largest limit beside that of the smallest mean gap, of those that were run."""
    rows = []
    for optimizer, group in _predicted("coefficient", FEW).groupby("optimizer"):
        values = group.set_index("coefficient")
        best = (values["inverse"].idxmin(), values["gap"].idxmin())
        rows.append([name(optimizer), *map("{:g}".format, best)])
    return table(["optimizer", "λ of the largest limit", "λ of the smallest mean gap"], rows)


def sharpness() -> Markdown:
    """k over the delayed limit along each run, mean over seeds, by the largest of a run."""
    shares = _shares()
    along = shares.groupby(["optimizer", "num_updates"])["share"].mean().unstack()
    seeds = shares.groupby("optimizer")["seed"].nunique()
    rows = [
        [
            *(name(optimizer), *(f"{share:.2f}" for share in along.loc[optimizer])),
            *(f"{most:.2f} (n={seeds[optimizer]})", cells.gap(gap)),
        ]
        for optimizer, most, gap in _sharpest(shares)
    ]
    updates = [f"{value:,}" for value in along.columns]
    return table(["updates", *updates, "largest", "gap of the delay"], rows)


def sharpness_rank() -> str:
    """How well the largest share ranks the gaps."""
    _, most, gaps = zip(*_sharpest(_shares()), strict=True)
    rank = _rank_correlation(most, [gap["gap"] for gap in gaps])
    return (
        f"The largest share ranks the gaps of these {rank.n} optimizers with Spearman's ρ = "
        f"{rank}, p = {rank.p:.2g}."
    )


def _shares() -> pd.DataFrame:
    """One row per measurement of sharpness, with `share`: k over the limit of a delay of 1."""
    rows = pd.read_csv(FINDINGS / "sharpness" / "sharpness_tiny.csv")
    return rows.assign(share=rows["k"] / rows["delayed"])


def _sharpest(shares: pd.DataFrame) -> list[tuple[str, float, cells.Row]]:
    """Each optimizer with the largest share along a run, mean over seeds, and the gap of the delay;
    by that share."""
    runs = shares.groupby(["optimizer", "seed"])["share"].max()
    gaps = groups(of_sweep("shared_rate", TINY))
    most = runs.groupby("optimizer").mean().sort_values()
    return [(str(of), float(share), gaps[of,].arms["delay"]) for of, share in most.items()]
