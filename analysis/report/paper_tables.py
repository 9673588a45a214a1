"""The tables of a report: each is a function of trials and gaps, and is registered here."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import pandas as pd

from analysis.claims.measure import DELAY
from analysis.report.downstream_table import NOTE, ONE_SEED, table4
from analysis.report.paper import note, reported
from analysis.report.protocols import protocols
from analysis.report.remedies import remedies
from analysis.statistics.best import best
from analysis.statistics.lateness import compared, lateness
from analysis.statistics.overhead import overhead
from analysis.statistics.regime import DECAYED, INACTIVE, MEAN_FACTOR, SHORT
from analysis.statistics.reported import reported_taxes
from analysis.statistics.spikes import spikes

GIB = 2**30


class Table(NamedTuple):
    """`data(trials, gaps, scale)` is its CSV; `notes(scale)` say how to read it.

    Columns `x`, `x_low`, `x_high` are shown as one. `source`: where the paper has it. `sweeps`:
    the sweeps whose trials it shows; empty: any, in one table per sweep, or in one for all sweeps
    of a scale, their longer runs too, if `together`.
    """

    name: str
    title: str
    data: Callable[[pd.DataFrame, pd.DataFrame, str], pd.DataFrame]
    notes: Callable[[str], str]
    source: str = ""
    sweeps: tuple[str, ...] = ()
    together: bool = False


def losses(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    """One row per point: mean final losses of sync, delay, Error Feedback and synchronous starts,
    the gaps of the last three, n pairs of each, and the paper's numbers where it has them."""
    is_started = (gaps["base_arm"] == gaps["arm"]) & (gaps["start"] > 0)
    starts = sorted({*gaps.loc[is_started & (gaps["schedule"] == DELAY), "arm"]})
    groups = gaps.groupby(["optimizer", "setting"], sort=False)
    rows = [
        {
            "optimizer": optimizer,
            "setting": setting,
            **_of_point(rows, ["delay", "delay_ef", *starts]),
            "regime": rows["regime"].iloc[0],
            **reported(scale, str(optimizer)),
        }
        for (optimizer, setting), rows in groups
        if (rows["pairs"] > 0).any()
    ]
    return pd.DataFrame(rows).pipe(_without_regime).pipe(_without_constant_setting)


def _of_point(rows: pd.DataFrame, arms: list[str]) -> dict[str, Any]:
    """Losses, gaps and counts of each arm; an arm that is missing has n=0."""
    by_arm: dict[Any, dict[Hashable, Any]] = {}
    for row in rows.to_dict("records"):
        by_arm.setdefault(row["arm"], row)
    reached = (row["loss_sync"] for row in by_arm.values() if not pd.isna(row["loss_sync"]))
    found: dict[str, Any] = {"sync": next(reached, None)}
    for arm in arms:
        row = by_arm.get(arm, {})
        gap = f"{arm} gap"
        found |= {arm: row.get("loss"), gap: row.get("gap")}
        found |= {f"{gap}_low": row.get("low"), f"{gap}_high": row.get("high")}
        found |= {f"{arm} n": row.get("n", 0), f"{arm} diverged": row.get("diverged", 0)}
    return found


def longest(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    """`losses` of each optimizer's points with the most tokens."""
    tokens = trials.groupby("point")["tokens"].max()
    of_gap = gaps["point"].map(tokens)
    most = of_gap.groupby(gaps["optimizer"]).transform("max")
    return losses(trials, gaps[of_gap == most], "")


def all_gaps(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Every gap of which there is a pair."""
    shown = gaps[gaps["pairs"] > 0].rename(columns={"low": "gap_low", "high": "gap_high"})
    columns = [
        *("optimizer", "setting", "arm", "num_stages", "num_microbatches"),
        *("loss_sync", "loss", "gap", "gap_low", "gap_high", "n", "diverged", "pairs"),
        *("removed", "removed_low", "removed_high", "removed_n", "regime"),
    ]
    return _without_constant_setting(_without_regime(shown[columns]))


def _taxes(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Every tax, those of others below it, and why there is none; empty without a tax."""
    shown = gaps[gaps["pairs"] > 0]
    if not (shown["tax_n"] > 0).any():
        return shown[:0]
    columns = [
        *("who", "optimizer", "setting", "arm", "tax", "tax_low", "tax_high", "tax_n", "tax_from"),
        *("tax_why", "source", "converted"),
    ]
    table = pd.concat([shown.assign(who="these trials"), reported_taxes()])
    return table.reindex(columns=columns)


def _best(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    found = best(trials).rename(columns={"low": "gap_low", "high": "gap_high"})
    return found.drop(columns=["task", "point", "point_sync"])


def _spikes(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    found = spikes(trials).rename(columns={"low": "mean_height_low", "high": "mean_height_high"})
    return _without_constant_setting(found.drop(columns="point"))


def _lateness(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    return _without_constant_setting(lateness(trials).drop(columns="point"))


def _lateness_compared(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    found = compared(lateness(trials)).rename(
        columns={"low": "difference_low", "high": "difference_high"}
    )
    return _without_constant_setting(found)


def _overhead(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    """In GiB and tokens/s; without the columns of speed where no trial had a machine for itself."""
    table = overhead(trials)
    table["memory"] /= GIB
    table = table.rename(columns={"memory": "memory (GiB)", "speed": "speed (tokens/s)"})
    of_speed = [name for name in table if str(name).startswith("speed")]
    return table if (table["speed n"] > 0).any() else table.drop(columns=of_speed)


def _without_regime(table: pd.DataFrame) -> pd.DataFrame:
    """Leaves out the column where every point is within the paper's regime."""
    within = "regime" in table and (table["regime"] == "").all()
    return table.drop(columns="regime") if within else table


def _without_constant_setting(table: pd.DataFrame) -> pd.DataFrame:
    """Leaves out those of these columns that do not tell rows apart."""
    candidates = ("setting", "num_stages", "num_microbatches")
    constant = [name for name in candidates if name in table and table[name].nunique() <= 1]
    return table.drop(columns=constant)


GAP_WORDS = (
    "Gap: final validation loss of the arm minus that of sync, same point and seed, in nats per "
    "token; mean over n pairs that both completed [95 % interval]. diverged: pairs in which only "
    f"the arm did. regime: where a point is outside of the paper's: {SHORT} (the momentum's memory "
    f"is a part of the run), or {INACTIVE} (learning rate x decay x {MEAN_FACTOR:g} T below "
    f"{DECAYED:g})."
)

TABLES = (
    Table(
        "token_taxes",
        "Token tax",
        _taxes,
        lambda scale: (
            "Updates (and so tokens) that the delayed run needs for the loss that sync reaches, "
            "over sync's own; a delay pays if the speed-up of the pipeline is larger. lengths: "
            "interpolated between delayed runs of several lengths, never beyond them; slope: "
            "exp(gap / slope of sync's own final losses against the logarithm of the length), with "
            "the errors of both."
        ),
        together=True,
    ),
    Table(
        "table1_2_losses",
        "Final losses and gaps of each optimizer",
        losses,
        lambda scale: f"{GAP_WORDS} {note(scale)}",
        source="tables 1, 2 (360M)",
        sweeps=("main", "optimizers", "synchronous_start"),
    ),
    Table(
        "table1_2_protocols",
        "Gaps at AdamW's learning rate and weight decay, and at each optimizer's own",
        protocols,
        lambda scale: (
            f"{GAP_WORDS} The paper searches both on AdamW and uses them for every optimizer but "
            "Lion. removed: share of the gap that Error Feedback (EF) removes."
        ),
        source="tables 1, 2 (360M)",
        sweeps=("tuned_shared", "tuned_own"),
    ),
    Table(
        "table3_horizon",
        "Final losses at the longest horizon",
        longest,
        lambda scale: f"{GAP_WORDS} The paper's, a 10B mixture of experts, is not trained here.",
        source="table 3 (10B MoE)",
        sweeps=("horizon",),
    ),
    Table(
        "table3_families",
        "Final losses of a dense model, a mixture of experts and a hybrid",
        losses,
        lambda scale: GAP_WORDS,
        source="table 3 (10B MoE)",
        sweeps=("families",),
    ),
    Table(
        "table4_downstream",
        "Downstream scores beside those of sync",
        table4,
        lambda scale: NOTE + ONE_SEED,
        source="table 4 (10B MoE)",
    ),
    Table(
        "best_over_grid",
        "The best setting of each arm against the best one of sync",
        _best,
        lambda scale: (
            "gap: each setting chosen for each seed on the other seeds, and compared on "
            "that one; gap_same_seeds: chosen and compared on the same seeds, which flatters."
        ),
        source="figure 13",
        sweeps=("batch_size", "learning_rate", "model_size", "moe_learning_rate"),
    ),
    Table(
        "tableF_overhead",
        "Memory and speed beside sync",
        _overhead,
        lambda scale: (
            "Medians over the trials; ratios: median over pairs of the same point, seed "
            "and device. Trials that ran side by side share a machine, so that their speed says "
            "nothing: it is left out, and speed n trials are left."
        ),
        source="appendix F",
        sweeps=("main", "optimizers"),
    ),
    Table(
        "remedies",
        "What each remedy leaves of the delay's cost, and what it costs",
        remedies,
        lambda scale: (
            f"{GAP_WORDS} tax: token tax; memory ratio, time ratio: peak memory and time per token "
            "over sync's."
        ),
        sweeps=("corrections", "remedies"),
    ),
    Table(
        "spikes",
        "The loss where the delay is switched on",
        _spikes,
        lambda scale: (
            "height: mean train loss of the first 10 updates with the delay, minus that of the "
            "same seed's sync arm over the same updates; recovery: updates until the loss is back "
            "where it was before the switch."
        ),
    ),
    Table(
        "lateness",
        "How near late updates are to the fresh ones",
        _lateness,
        lambda scale: (
            "cosine: of the optimizer's update and the fresh one, which the newest weights would "
            "have made; error: length of their difference over that of the fresh one. Means over "
            "the measured late updates of a trial."
        ),
        source="figures 17 and 18",
        sweeps=("staleness",),
    ),
    Table(
        "lateness_compared",
        "Whose late updates are nearer to the fresh ones",
        _lateness_compared,
        lambda scale: (
            "difference: the optimizer's mean cosine minus the other's, paired by seed. Nearer if "
            "its interval lies above 0, less near if below."
        ),
        sweeps=("staleness",),
    ),
    Table(
        "gaps",
        "Every gap",
        all_gaps,
        lambda scale: (
            f"{GAP_WORDS} removed: share of the plain gap that the correction removes "
            "(Fieller), where the plain gap's interval excludes 0."
        ),
    ),
)
