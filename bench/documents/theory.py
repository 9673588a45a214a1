"""The parts of docs/theory.md: what the theory says, beside what published trials say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import pandas as pd

from analysis.statistics.reported import reported_taxes
from analysis.table.names import minus
from analysis.table.names import optimizer as name
from analysis.theory.score import FEEDBACK, Rank, predictions, rank_correlation, settings
from analysis.theory.stability import Stability, stability
from analysis.theory.text import table as limits_table
from analysis.theory.text import three_digits
from bench.documents.cells import gap, removed, rows_of, table
from bench.documents.published import of_sweep

K = 0.1
"""At which noise is compared."""
FED = {"_target_": FEEDBACK, "coefficient": 1.0, "lag": 1}
Ranked = tuple[str, str, Rank]
"""What is ranked, by what of the theory, and how well."""


class AtLong(NamedTuple):
    """An optimizer at `long`: what the theory says after its last update, and what was measured."""

    theory: Stability
    gap: Mapping[str, Any]
    fed: Mapping[str, Any]
    """The rows of the plain delay and of Error Feedback in the table of gaps."""


def limits() -> str:
    """Of the optimizers of the sweep, with the settings of conf/."""
    names = sorted({*of_sweep("optimizers").trials["optimizer"]})
    found = sorted(map(_of_conf, names), key=lambda one: one.sync_over_delayed)
    return limits_table(found)


def _of_conf(optimizer: str) -> Stability:
    found = settings(optimizer, {})
    return stability((name(optimizer), "Error Feedback"), found, FED, delay=1, k=K)


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


@cache
def _at_long() -> Sequence[AtLong]:
    trials, gaps = of_sweep("shared_rate", "long")
    found = []
    for optimizer, arms in rows_of(gaps).items():
        trial = trials[trials["point"] == arms["delay"]["point"]].iloc[0]
        names, updates = (name(optimizer), "Error Feedback"), float(trial["num_updates"])
        of = settings(optimizer, trial)
        theory = stability(names, of, FED, delay=1, k=K, updates=updates)
        found.append(AtLong(theory, arms["delay"], arms["delay_ef"]))
    return sorted(found, key=lambda one: one.theory.noise_removed)


def beside_long() -> str:
    """The noise of each optimizer after the last update at `long`, beside its gaps there."""
    rows = []
    for theory, plain, fed in _at_long():
        share = minus(f"{100 * theory.noise_removed:.0f} %")
        noise = f"{theory.noise_delayed:.3f}"
        rows.append([theory.optimizer, noise, gap(plain), share, removed(fed)])
    heads = ["optimizer", "noise of the delay", "gap of the delay", "EF removes of the noise"]
    return table([*heads, "of the gap"], rows)


def ranks() -> str:
    """Every ranking that the published sweeps allow, also those that fail."""
    rows = [
        [what, by, str(rank.n), with_interval(rank), f"{rank.p:.2g}"]
        for what, by, rank in _ranked()
    ]
    heads = ["measured", "ranked by", "n", "Spearman's ρ [95 %]", "p"]
    return table(heads, [[cell.replace("-", "−") for cell in row] for row in rows])


def with_interval(rank: Rank) -> str:
    """Its ρ with the interval, where that is known."""
    if math.isnan(rank.low):
        return f"{rank.rho:+.2f}"
    return f"{rank.rho:+.2f} [{rank.low:+.2f}, {rank.high:+.2f}]"


def _ranked() -> Iterator[Ranked]:
    for over, when in ((False, ""), (True, " (NAdamW's momentum as it ends)")):
        both = _both(over)
        ratio, fed = both["sync"] / both["delayed"], both["fed_corrected"] / both["delayed"]
        yield f"gap of the delay, by optimizer{when}", "sync / delay", _rank(ratio, both["gap"])
        yield f"share that EF removes{when}", "EF / delay", _rank(fed, both["fed_removed"])
    yield from _ranked_at_long()
    yield from _ranked_of_the_paper()
    for optimizer, rows in _predicted("momentum").groupby("optimizer"):
        ratio = rows["sync"] / rows["delayed"]
        yield f"gap of {name(optimizer)}, by momentum", "sync / delay", _rank(ratio, rows["gap"])
    for optimizer, rows in _predicted("coefficient").groupby("optimizer"):
        rank = _rank(1 / rows["corrected"], rows["gap"])
        yield f"gap of {name(optimizer)} with EF, by λ", "1 / limit", rank


def _ranked_at_long() -> Iterator[Ranked]:
    found = _at_long()
    gaps, shares = [one.gap["gap"] for one in found], [one.fed["removed"] for one in found]
    limits, noise, fed, quiet = zip(
        *(
            (of.sync_over_delayed, of.noise_delayed, of.corrected_over_delayed, of.noise_removed)
            for of, _, _ in found
        ),
        strict=True,
    )
    at, share = "gap of the delay at `long`, by optimizer", "share that EF removes at `long`"
    yield at, "sync / delay", _rank(limits, gaps)
    yield at, f"noise at k = {K:g}", _rank(noise, gaps)
    yield share, "EF / delay", _rank(fed, shares)
    yield share, f"removed of the noise at k = {K:g}", _rank(quiet, shares)


def _ranked_of_the_paper() -> Iterator[Ranked]:
    taxes = reported_taxes()
    taxes = taxes[taxes["who"].str.startswith("paper") & (taxes["arm"] == "delay")]
    found = list(map(_of_conf, taxes["optimizer"]))
    what = "token tax in the paper, 360M, by optimizer"
    yield what, "sync / delay", _rank([one.sync_over_delayed for one in found], taxes["tax"])
    yield what, f"noise at k = {K:g}", _rank([one.noise_delayed for one in found], taxes["tax"])


def _rank(predicted: Iterable[float], measured: Iterable[float]) -> Rank:
    return rank_correlation(list(predicted), list(measured))


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
