"""The theory beside what was measured, without a fit: every public function is a call."""

import math
from collections.abc import Iterable, Iterator
from functools import cache

import pandas as pd

from analysis.statistics.reported import reported_taxes
from analysis.table.names import optimizer as name
from analysis.theory.score import RankCorrelation, predictions, rank_correlation, settings
from analysis.theory.stability import Stability
from analysis.theory.stability import table as limits_table
from findings.code import cells
from findings.code.cells import K, Markdown, expected, groups, table
from findings.code.published import FEW, FINDINGS, TINY, of_sweep

REMOVED = f"removed of the noise at k = {K:g}"
Ranked = tuple[str, str, RankCorrelation]
"""What is ranked, by what of the theory, and how well."""


def _of_conf(optimizer: str) -> Stability:
    return expected(optimizer, tuple(settings(optimizer, {}).items()))


def limits() -> Markdown:
    """The limits of the optimizers of the sweep `optimizers`, with the settings of conf/."""
    names = sorted({*of_sweep("optimizers", FEW).trials["optimizer"]})
    ordered = sorted(map(_of_conf, names), key=lambda of: of.sync_over_delayed)
    return Markdown(limits_table(ordered))


@cache
def _shares_removed(sweep: str) -> pd.DataFrame:
    """One row per optimizer and coefficient of a sweep at `tiny`: the columns of the table of gaps
    for Error Feedback, the `plain_gap` of the delay, and what the theory says of both."""
    rows = [
        {
            **row,
            "plain_gap": group.arms["delay"]["gap"],
            "theory": group.theory(arm),
            "share": group.theory(arm).noise_removed,
        }
        for group in groups(of_sweep(sweep, TINY)).values()
        for arm, row in group.arms.items()
        if row["method"] == "error_feedback"
    ]
    return pd.DataFrame(rows)


def noise_inside(sweep: str) -> str:
    """How many shares of the gap have the share of the noise within their interval."""
    rows = _shares_removed(sweep)
    within = rows["share"].between(rows["removed_low"], rows["removed_high"]).sum()
    return f"Of {len(rows)} shares, {within} have the theory's within their 95 % interval."


@cache
def _predicted(sweep: str, over: bool = False) -> pd.DataFrame:
    shown = of_sweep(sweep, FEW)
    rows = predictions(shown.trials, shown.gaps, over=over)
    return rows.assign(
        ratio=rows["sync"] / rows["delayed"], fed=rows["corrected"] / rows["delayed"]
    )


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
    return rank_correlation([*predicted], [*measured])


def _ranked_optimizers() -> Iterator[Ranked]:
    """Gaps at `few_updates` by limits."""
    for over, when in ((False, ""), (True, " (NAdamW's momentum as it ends)")):
        rows = _predicted("optimizers", over)
        plain, fed = (rows[rows["method"] == method] for method in ("none", "error_feedback"))
        what = (f"gap of the delay, by optimizer{when}", f"share that EF removes{when}")
        yield what[0], "sync / delay", _rank(plain["ratio"], plain["gap"])
        yield what[1], "EF / delay", _rank(fed["fed"], fed["removed"])


def _ranked_by_noise() -> Iterator[Ranked]:
    """Gaps at `tiny`, and what Error Feedback removes of them, by limits and by noise."""
    rows = _shares_removed("shared_rate")
    at, share = "gap of the delay at `tiny`, by optimizer", "share that EF removes at `tiny`"
    for what, by, quantity, measured in (
        (at, "sync / delay", "sync_over_delayed", "plain_gap"),
        (at, f"noise at k = {K:g}", "noise_delayed", "plain_gap"),
        (share, "EF / delay", "corrected_over_delayed", "removed"),
        (share, REMOVED, "noise_removed", "removed"),
    ):
        predicted = [getattr(stability, quantity) for stability in rows["theory"]]
        yield what, by, _rank(predicted, rows[measured])
    known = _shares_removed("noise").dropna(subset=["removed"])
    for value, group in known.groupby("coefficient"):
        what = f"the same at λ = {value:g}, in `noise`"
        yield what, REMOVED, _rank(group["share"], group["removed"])


def _ranked_of_the_paper() -> Iterator[Ranked]:
    taxes = reported_taxes().query("arm == 'delay' and who.str.startswith('paper')")
    theory = [*map(_of_conf, taxes["optimizer"])]
    what = "token tax in the paper, 360M, by optimizer"
    limits, noises = (
        [limit.sync_over_delayed for limit in theory],
        [x.noise_delayed for x in theory],
    )
    yield what, "sync / delay", _rank(limits, taxes["tax"])
    yield what, f"noise at k = {K:g}", _rank(noises, taxes["tax"])


def _ranked_within_optimizers() -> Iterator[Ranked]:
    for optimizer, rows in _predicted("momentum").groupby("optimizer"):
        rank = _rank(rows["ratio"], rows["gap"])
        yield f"gap of {name(optimizer)}, by momentum", "sync / delay", rank
    for optimizer, rows in _predicted("coefficient").groupby("optimizer"):
        rank = _rank(1 / rows["corrected"], rows["gap"])
        yield f"gap of {name(optimizer)} with EF, by λ", "1 / limit", rank


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
    for optimizer, group in (
        _predicted("coefficient").fillna({"coefficient": 0.0}).groupby("optimizer")
    ):
        values = group.set_index("coefficient")
        best = (values["corrected"].idxmax(), values["gap"].idxmin())
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
    rank = _rank(most, (gap["gap"] for gap in gaps))
    return (
        f"The largest share ranks the gaps of these {rank.n} optimizers with Spearman's ρ = "
        f"{_with_interval(rank)}, p = {rank.p:.2g}."
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
