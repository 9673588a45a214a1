"""The theory beside what was measured, without a fit: every public function is a call."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

import pandas as pd

from analysis.statistics.reported import reported_taxes
from analysis.table.names import minus
from analysis.table.names import optimizer as name
from analysis.theory.stability import Stability, stability, three_digits
from analysis.theory.stability import table as limits_table
from findings.code import cells
from findings.code.cells import Markdown, Row, groups, table
from findings.code.predictions import (
    FEEDBACK,
    RankCorrelation,
    predictions,
    rank_correlation,
    settings,
)
from findings.code.published import FEW, FINDINGS, TINY, of_sweep

K = 0.1
"""The k at which noise is compared."""
REMOVED = f"removed of the noise at k = {K:g}"
Ranked = tuple[str, str, RankCorrelation]
"""What is ranked, by what of the theory, and how well."""


class Beside(NamedTuple):
    """What the theory says of an optimizer with Error Feedback, and what was measured."""

    theory: Stability
    plain: Row
    fed: Row
    """The rows of the plain delay and of Error Feedback in the table of gaps."""

    @property
    def coefficient(self) -> float:
        """The λ of Error Feedback."""
        return float(self.fed["coefficient"])

    @property
    def share(self) -> str:
        """The share of the noise that Error Feedback removes."""
        return minus(f"{100 * self.theory.noise_removed:.0f} %")


def _expected(
    optimizer: str, of: Mapping[str, Any], coefficient: float = 1.0, updates: float = math.inf
) -> Stability:
    """A delay of 1 and Error Feedback, for an optimizer of these settings after `updates`."""
    fed = {"_target_": FEEDBACK, "coefficient": coefficient, "lag": 1}
    names = (name(optimizer), "Error Feedback")
    return stability(names, of, fed, delay=1, k=K, updates=updates)


def _of_conf(optimizer: str) -> Stability:
    return _expected(optimizer, settings(optimizer, {}))


@cache
def _beside(sweep: str) -> Sequence[Beside]:
    """Every optimizer and coefficient of a sweep at `tiny`."""
    shown = of_sweep(sweep, TINY)
    by_point = {row["point"]: row for row in shown.trials.to_dict("records")}
    made = []
    for (optimizer,), group in groups(shown).items():
        for fed in (row for row in group.arms.values() if row["method"] == "error_feedback"):
            trial = by_point[fed["point"]]
            of, updates = settings(optimizer, trial), float(trial["num_updates"])
            theory = _expected(optimizer, of, fed["coefficient"], updates)
            made.append(Beside(theory, group.arms["delay"], fed))
    return made


def limits() -> Markdown:
    """The limits of the optimizers of the sweep `optimizers`, with the settings of conf/."""
    names = sorted({*of_sweep("optimizers", FEW).trials["optimizer"]})
    ordered = sorted(map(_of_conf, names), key=lambda of: of.sync_over_delayed)
    return Markdown(limits_table(ordered))


def noise() -> Markdown:
    """The noise of each optimizer after the last update at `tiny`, beside its gaps there."""
    ordered = sorted(_beside("shared_rate"), key=lambda of: of.theory.noise_removed)
    rows = [
        [
            *(of.theory.optimizer, f"{of.theory.noise_delayed:.3f}", cells.gap(of.plain)),
            *(of.share, cells.removed(of.fed)),
        ]
        for of in ordered
    ]
    heads = ["optimizer", "noise of the delay", "gap of the delay", "EF removes of the noise"]
    return table([*heads, "of the gap"], rows)


def noise_by_coefficient(sweep: str) -> Markdown:
    """The share that Error Feedback removes of the noise, and of the gap, one column per λ."""
    beside = _beside(sweep)
    values = sorted({of.coefficient for of in beside})
    rows = []
    for optimizer in dict.fromkeys(of.theory.optimizer for of in beside):
        by_value = {of.coefficient: of for of in beside if of.theory.optimizer == optimizer}
        at = [by_value[value] for value in values]
        rows.append([f"{optimizer}: of the noise", *(of.share for of in at)])
        rows.append([f"{optimizer}: of the gap", *(cells.removed(of.fed) for of in at)])
    return table(["λ", *(f"{value:g}" for value in values)], rows)


def noise_inside(sweep: str) -> str:
    """How many shares of the gap have the share of the noise within their interval."""
    beside = _beside(sweep)
    within = sum(
        of.fed["removed_low"] <= of.theory.noise_removed <= of.fed["removed_high"] for of in beside
    )
    return f"Of {len(beside)} shares, {within} have the theory's within their 95 % interval."


@cache
def _predicted(sweep: str, over: bool = False) -> pd.DataFrame:
    shown = of_sweep(sweep, FEW)
    return predictions(shown.trials, shown.gaps, over=over)


def _both(over: bool = False) -> pd.DataFrame:
    """One row per optimizer: the row of the plain delay, with columns `fed_…` of Error Feedback."""
    rows = _predicted("optimizers", over)
    plain, fed = (
        rows[rows["method"] == method].set_index("optimizer")
        for method in ("none", "error_feedback")
    )
    return plain.join(fed.add_prefix("fed_")).sort_values("gap")


def limits_beside_gaps() -> Markdown:
    """Prediction and measurement of each optimizer of the sweep `optimizers`."""
    rows = []
    for optimizer, row in _both().iterrows():
        fed = {key: row[f"fed_{key}"] for key in ("removed", "removed_low", "removed_high")}
        ratios = (row["sync"] / row["delayed"], row["fed_corrected"] / row["delayed"])
        limit, corrected = map(three_digits, ratios)
        measured = [cells.gap(row.to_dict()), corrected, cells.removed(fed)]
        rows.append([name(optimizer), limit, *measured])
    heads = ["optimizer", "sync / delay", "gap of the delay", "EF / delay", "gap removed by EF"]
    return table(heads, rows)


def ranks() -> Markdown:
    """Every ranking that the published sweeps allow, also those that fail."""
    rows = [
        [what, by, str(rank.n), _with_interval(rank), f"{rank.p:.2g}"]
        for what, by, rank in (
            *_ranked_optimizers(),
            *_ranked_by_noise(),
            *_ranked_of_the_paper(),
            *_ranked_within_optimizers(),
        )
    ]
    heads = ["measured", "ranked by", "n", "Spearman's ρ [95 %]", "p"]
    return table(heads, [[cell.replace("-", "−") for cell in row] for row in rows])


def _with_interval(rank: RankCorrelation) -> str:
    """Spearman's ρ with the interval, where that is known."""
    if math.isnan(rank.low):
        return f"{rank.rho:+.2f}"
    return f"{rank.rho:+.2f} [{rank.low:+.2f}, {rank.high:+.2f}]"


def _rank(predicted: Iterable[float], measured: Iterable[float]) -> RankCorrelation:
    return rank_correlation(list(predicted), list(measured))


def _ranked_optimizers() -> Iterator[Ranked]:
    """Gaps at `few_updates` by limits."""
    for over, when in ((False, ""), (True, " (NAdamW's momentum as it ends)")):
        both = _both(over)
        ratio, fed = both["sync"] / both["delayed"], both["fed_corrected"] / both["delayed"]
        yield f"gap of the delay, by optimizer{when}", "sync / delay", _rank(ratio, both["gap"])
        yield f"share that EF removes{when}", "EF / delay", _rank(fed, both["fed_removed"])


def _ranked_by_noise() -> Iterator[Ranked]:
    """Gaps at `tiny`, and what Error Feedback removes of them, by limits and by noise."""
    beside = _beside("shared_rate")
    gaps, shares = (
        [*map(of, beside)] for of in (lambda b: b.plain["gap"], lambda b: b.fed["removed"])
    )
    theory = [of.theory for of in beside]
    at, share = "gap of the delay at `tiny`, by optimizer", "share that EF removes at `tiny`"
    yield at, "sync / delay", _rank([of.sync_over_delayed for of in theory], gaps)
    yield at, f"noise at k = {K:g}", _rank([of.noise_delayed for of in theory], gaps)
    yield share, "EF / delay", _rank([of.corrected_over_delayed for of in theory], shares)
    yield share, REMOVED, _rank([of.noise_removed for of in theory], shares)
    known = [of for of in _beside("noise") if not math.isnan(of.fed["removed"])]
    known.sort(key=lambda of: of.coefficient)
    for value, each in groupby(known, key=lambda of: of.coefficient):
        pairs = [(of.theory.noise_removed, of.fed["removed"]) for of in each]
        yield f"the same at λ = {value:g}, in `noise`", REMOVED, _rank(*zip(*pairs, strict=True))


def _ranked_of_the_paper() -> Iterator[Ranked]:
    taxes = reported_taxes()
    taxes = taxes[taxes["who"].str.startswith("paper") & (taxes["arm"] == "delay")]
    theory = [*map(_of_conf, taxes["optimizer"])]
    what = "token tax in the paper, 360M, by optimizer"
    yield what, "sync / delay", _rank([of.sync_over_delayed for of in theory], taxes["tax"])
    noises = [of.noise_delayed for of in theory]
    yield what, f"noise at k = {K:g}", _rank(noises, taxes["tax"])


def _ranked_within_optimizers() -> Iterator[Ranked]:
    for optimizer, rows in _predicted("momentum").groupby("optimizer"):
        ratio = rows["sync"] / rows["delayed"]
        yield f"gap of {name(optimizer)}, by momentum", "sync / delay", _rank(ratio, rows["gap"])
    for optimizer, rows in _predicted("coefficient").groupby("optimizer"):
        rank = _rank(1 / rows["corrected"], rows["gap"])
        yield f"gap of {name(optimizer)} with EF, by λ", "1 / limit", rank


def gaps_over_the_grid() -> str:
    """The gaps over batch sizes and rates, of which the ratio says nothing."""
    rows = of_sweep("batch_size", FEW).gaps
    rows = rows[(rows["pairs"] > 0) & (rows["method"] == "none") & (rows["n"] > 0)]
    said = []
    for optimizer, group in rows.groupby("optimizer"):
        least, *_, most = group.sort_values("gap").to_dict("records")
        said.append(f"{name(optimizer)}'s gap from {cells.gap(least)} to {cells.gap(most)}")
    return f"In the sweep over batch sizes and learning rates, {' and '.join(said)}."


def best_coefficients() -> Markdown:
    """The λ of the largest limit beside that of the smallest mean gap, of those that were run."""
    rows = []
    for optimizer, group in _predicted("coefficient").groupby("optimizer"):
        by_value = group.assign(value=group["coefficient"].fillna(0.0))
        theory = by_value.sort_values("corrected")["value"].iloc[-1]
        measured = by_value.sort_values("gap")["value"].iloc[0]
        rows.append([name(optimizer), f"{theory:g}", f"{measured:g}"])
    return table(["optimizer", "λ of the largest limit", "λ of the smallest mean gap"], rows)


def sharpness() -> Markdown:
    """k over the delayed limit along each run, mean over seeds, by the largest of a run."""
    shares, gaps = _shares(), _delayed_gaps()
    along = shares.groupby(["optimizer", "num_updates"])["share"].mean().unstack()
    seeds, most = shares.groupby("optimizer")["seed"].nunique(), _sharpest()
    rows = [
        [
            name(optimizer),
            *(f"{share:.2f}" for share in along.loc[optimizer]),
            f"{most[optimizer]:.2f} (n={seeds[optimizer]})",
            cells.gap(gaps[optimizer]),
        ]
        for optimizer in most.index
    ]
    updates = [f"{value:,}" for value in along.columns]
    return table(["updates", *updates, "largest", "gap of the delay"], rows)


def sharpness_rank() -> str:
    """How well the largest share ranks the gaps."""
    most, gaps = _sharpest(), _delayed_gaps()
    rank = _rank(most, [gaps[optimizer]["gap"] for optimizer in most.index])
    return (
        f"The largest share ranks the gaps of these {rank.n} optimizers with Spearman's ρ = "
        f"{_with_interval(rank)}, p = {rank.p:.2g}."
    )


def _shares() -> pd.DataFrame:
    """One row per measurement of sharpness, with `share`: k over the limit of a delay of 1."""
    rows = pd.read_csv(FINDINGS / "sharpness" / "sharpness_tiny.csv")
    return rows.assign(share=rows["k"] / rows["delayed"])


def _sharpest() -> pd.Series:
    """By optimizer the largest share along a run, mean over seeds, ascending."""
    runs = _shares().groupby(["optimizer", "seed"])["share"].max()
    return runs.groupby("optimizer").mean().sort_values()


def _delayed_gaps() -> dict[str, Row]:
    rows = groups(of_sweep("shared_rate", TINY))
    return {at[0]: group.arms["delay"] for at, group in rows.items()}
