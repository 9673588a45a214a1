"""The theory beside what was measured, without a fit: every public function is a call."""

import math
from collections.abc import Iterator
from functools import cache

import pandas as pd

from analysis.statistics.tax import reported_taxes
from analysis.table.names import optimizer as name
from analysis.theory.stability import Stability
from analysis.theory.stability import table as limits_table
from findings.code import cells
from findings.code.cells import K, Markdown, expected, groups, table
from findings.code.predictions import RankCorrelation, predictions, rank_correlation, settings
from findings.code.published import FEW, FINDINGS, TINY, of_sweep

RANKED_BY = {
    "limit": "sync / delay",
    "noise": f"noise at k = {K:g}",
    "fed": "EF / delay",
    "share": f"removed of the noise at k = {K:g}",
    "inverse": "1 / limit",
}
"""Column of the theory → its name in the table of ranks."""


def _of_conf(optimizer: str) -> Stability:
    return expected(optimizer, tuple(settings(optimizer, {}).items()))


def limits() -> Markdown:
    """The limits of the optimizers of the sweep `optimizers`, with the settings of conf/."""
    names = sorted({*of_sweep("optimizers", FEW).trials["optimizer"]})
    ordered = sorted(map(_of_conf, names), key=lambda of: of.sync_over_delayed)
    return Markdown(limits_table(ordered))


def _numbers(theory: Stability) -> dict[str, float]:
    """Columns of RANKED_BY."""
    limits = {"limit": theory.sync_over_delayed, "fed": theory.corrected_over_delayed}
    return {**limits, "noise": theory.noise_delayed, "share": theory.noise_removed}


@cache
def _shares_removed(sweep: str) -> pd.DataFrame:
    """One row per optimizer and coefficient of a sweep at `tiny`: the columns of the table of gaps
    for Error Feedback, the `plain_gap` of the delay, and the theory's numbers."""
    rows = [
        {**row, "plain_gap": group.arms["delay"]["gap"], **_numbers(group.theory(arm))}
        for group in groups(of_sweep(sweep, TINY)).values()
        if group.is_linear()
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
    ratios = {"limit": rows["sync"] / rows["delayed"], "fed": rows["corrected"] / rows["delayed"]}
    return rows.assign(**ratios, inverse=1 / rows["corrected"])


def ranks() -> Markdown:
    """Every ranking that the published sweeps allow, also those that fail."""
    lines = []
    for what, by, rows, measured in _rankings():
        rank = rank_correlation([*rows[by]], [*rows[measured]])
        line = [what, RANKED_BY[by], str(rank.n), _with_interval(rank), f"{rank.p:.2g}"]
        lines.append([cell.replace("-", "−") for cell in line])
    return table(["measured", "ranked by", "n", "Spearman's ρ [95 %]", "p"], lines)


def _with_interval(rank: RankCorrelation) -> str:
    """Spearman's ρ with the interval, where that is known."""
    interval = "" if math.isnan(rank.low) else f" [{rank.low:+.2f}, {rank.high:+.2f}]"
    return f"{rank.rho:+.2f}{interval}"


def _rankings() -> Iterator[tuple[str, str, pd.DataFrame, str]]:
    """What is ranked, by which column of the rows, the rows, and the column that is measured."""
    for over, when in ((False, ""), (True, " (NAdamW's momentum as it ends)")):
        rows = _predicted("optimizers", over)
        plain, fed = (rows[rows["method"] == method] for method in ("none", "error_feedback"))
        yield f"gap of the delay, by optimizer{when}", "limit", plain, "gap"
        yield f"share that EF removes{when}", "fed", fed, "removed"
    for by in ("limit", "noise"):
        rows = _shares_removed("shared_rate")
        yield "gap of the delay at `tiny`, by optimizer", by, rows, "plain_gap"
    for by in ("fed", "share"):
        yield "share that EF removes at `tiny`", by, _shares_removed("shared_rate"), "removed"
    known = _shares_removed("noise").dropna(subset=["removed"])
    for value, rows in known.groupby("coefficient"):
        yield f"the same at λ = {value:g}, in `noise`", "share", rows, "removed"
    taxes = reported_taxes().query("arm == 'delay' and who.str.startswith('paper')")
    theory = pd.DataFrame(map(_numbers, map(_of_conf, taxes["optimizer"])), index=taxes.index)
    for by in ("limit", "noise"):
        yield "token tax in the paper, 360M, by optimizer", by, taxes.join(theory), "tax"
    for optimizer, rows in _predicted("momentum").groupby("optimizer"):
        yield f"gap of {name(optimizer)}, by momentum", "limit", rows, "gap"
    for optimizer, rows in _predicted("coefficient").groupby("optimizer"):
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
    rank = rank_correlation(most, [gap["gap"] for gap in gaps])
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
