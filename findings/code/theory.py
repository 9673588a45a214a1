"""The parts of docs/theory.md: what the theory says, beside what published trials say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import pandas as pd

from analysis.statistics.reported import reported_taxes
from analysis.table.names import optimizer as name
from analysis.theory.score import RankCorrelation, predictions, settings
from analysis.theory.stability import Stability, three_digits
from analysis.theory.stability import table as limits_table
from bench.documents import noise
from bench.documents.cells import gap, removed, table
from bench.documents.noise import rank
from bench.documents.published import of_sweep


def limits() -> str:
    """Of the optimizers of the sweep, with the settings of conf/."""
    names = sorted({*of_sweep("optimizers").trials["optimizer"]})
    found = sorted(map(_of_conf, names), key=lambda one: one.sync_over_delayed)
    return limits_table(found)


def _of_conf(optimizer: str) -> Stability:
    found = settings(optimizer, {})
    return noise.expected(optimizer, found)


@cache
def _predicted(sweep: str, over: bool = False) -> pd.DataFrame:
    found = of_sweep(sweep)
    return predictions(found.trials, found.gaps, over=over)


def _both(over: bool = False) -> pd.DataFrame:
    """One row per optimizer: the row of the plain delay, with columns `fed_…` of the other's."""
    found = _predicted("optimizers", over)
    plain, fed = (
        found[found["method"] == method].set_index("optimizer")
        for method in ("none", "error_feedback")
    )
    return plain.join(fed.add_prefix("fed_")).sort_values("gap")


def beside() -> str:
    """Prediction and measurement of each optimizer."""
    rows = []
    for optimizer, row in _both().iterrows():
        fed = {key: row[f"fed_{key}"] for key in ("removed", "removed_low", "removed_high")}
        ratios = (row["sync"] / row["delayed"], row["fed_corrected"] / row["delayed"])
        said = [three_digits(ratio) for ratio in ratios]
        rows.append([name(optimizer), said[0], gap(row.to_dict()), said[1], removed(fed)])
    heads = ["optimizer", "sync / delay", "gap of the delay", "EF / delay", "gap removed by EF"]
    return table(heads, rows)


def ranks() -> str:
    """Every ranking that the published sweeps allow, also those that fail."""
    rows = [
        [what, by, str(found.n), with_interval(found), f"{found.p:.2g}"]
        for what, by, found in _ranked()
    ]
    heads = ["measured", "ranked by", "n", "Spearman's ρ [95 %]", "p"]
    return table(heads, [[cell.replace("-", "−") for cell in row] for row in rows])


def with_interval(rank: RankCorrelation) -> str:
    """Its ρ with the interval, where that is known."""
    if math.isnan(rank.low):
        return f"{rank.rho:+.2f}"
    return f"{rank.rho:+.2f} [{rank.low:+.2f}, {rank.high:+.2f}]"


def _ranked() -> Iterator[noise.Ranked]:
    for over, when in ((False, ""), (True, " (NAdamW's momentum as it ends)")):
        both = _both(over)
        ratio, fed = both["sync"] / both["delayed"], both["fed_corrected"] / both["delayed"]
        yield f"gap of the delay, by optimizer{when}", "sync / delay", rank(ratio, both["gap"])
        yield f"share that EF removes{when}", "EF / delay", rank(fed, both["fed_removed"])
    yield from noise.ranked()
    yield from _ranked_of_the_paper()
    for optimizer, rows in _predicted("momentum").groupby("optimizer"):
        ratio = rows["sync"] / rows["delayed"]
        yield f"gap of {name(optimizer)}, by momentum", "sync / delay", rank(ratio, rows["gap"])
    for optimizer, rows in _predicted("coefficient").groupby("optimizer"):
        found = rank(1 / rows["corrected"], rows["gap"])
        yield f"gap of {name(optimizer)} with EF, by λ", "1 / limit", found


def _ranked_of_the_paper() -> Iterator[noise.Ranked]:
    taxes = reported_taxes()
    taxes = taxes[taxes["who"].str.startswith("paper") & (taxes["arm"] == "delay")]
    found = list(map(_of_conf, taxes["optimizer"]))
    what = "token tax in the paper, 360M, by optimizer"
    yield what, "sync / delay", rank([one.sync_over_delayed for one in found], taxes["tax"])
    yield (
        what,
        f"noise at k = {noise.K:g}",
        rank([one.noise_delayed for one in found], taxes["tax"]),
    )


def noise_regime() -> str:
    """The gaps over batch sizes and rates, of which the ratio says nothing."""
    found = of_sweep("batch_size").gaps
    found = found[(found["pairs"] > 0) & (found["method"] == "none") & (found["n"] > 0)]
    said = []
    for optimizer, rows in found.groupby("optimizer"):
        ordered = rows.sort_values("gap").to_dict("records")
        said.append(f"{name(optimizer)}'s gap from {gap(ordered[0])} to {gap(ordered[-1])}")
    return f"In the sweep over batch sizes and learning rates, {' and '.join(said)}."


def best_coefficients() -> str:
    """The λ of the largest limit beside that of the smallest mean gap, of those that were run."""
    rows = []
    for optimizer, group in _predicted("coefficient").groupby("optimizer"):
        by_value = group.assign(value=group["coefficient"].fillna(0.0))
        theory = by_value.sort_values("corrected")["value"].iloc[-1]
        measured = by_value.sort_values("gap")["value"].iloc[0]
        rows.append([name(optimizer), f"{theory:g}", f"{measured:g}"])
    return table(["optimizer", "λ of the largest limit", "λ of the smallest mean gap"], rows)
