"""The tables of a report: each is a function of trials and gaps, and is registered here."""

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

from pipegap.analysis.report.table_data import (
    ENDS,
    all_gaps,
    beside_paper,
    longest,
    losses,
    protocols,
    remedies,
    table4,
    without_constant_setting,
)
from pipegap.analysis.statistics.best import best
from pipegap.analysis.statistics.diagnostics import compared, lateness, spikes
from pipegap.analysis.statistics.downstream import CHECKPOINTS
from pipegap.analysis.statistics.gaps import DECAYED, INACTIVE, MEAN_FACTOR, SHORT
from pipegap.analysis.statistics.pairs import ENOUGH_UPDATES, overhead
from pipegap.analysis.statistics.tax import reported_taxes

GIB = 2**30
Data = Callable[[pd.DataFrame, pd.DataFrame, str], pd.DataFrame]
"""The CSV of a table, from trials, gaps and the name of the scale."""


class Table(NamedTuple):
    """A table of a report: `data` makes its CSV, `note` says how to read it.

    Columns `x`, `x_low`, `x_high` are shown as one. `source` says where the paper has the table,
    and is empty if the paper has none. `sweeps` are the sweeps whose trials it shows. Without
    sweeps it shows any trials, in one table per sweep; with `together` in one table for all sweeps
    of a scale, with their longer runs. `at_scale` says more of the numbers of a scale.
    """

    name: str
    title: str
    data: Data
    note: str
    source: str = ""
    sweeps: tuple[str, ...] = ()
    together: bool = False
    at_scale: Callable[[str], str] = lambda scale: ""

    def note_at(self, scale: str) -> str:
        """Return how to read the table of a scale."""
        return f"{self.note} {self.at_scale(scale)}".rstrip()


def _taxes(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Return every tax or why there is none, and taxes of others; no row without a tax.

    One row counts those of too few seeds or updates to say something.
    """
    rows_shown = gaps[gaps["pairs"] > 0]
    updates = rows_shown["point"].map(trials.groupby("point")["num_updates"].max())
    is_weak = (rows_shown["tax_n"] == 1) | (updates < ENOUGH_UPDATES)
    left_out, rows_shown = rows_shown[is_weak], rows_shown[~is_weak]
    if not (rows_shown["tax_n"] > 0).any():
        return rows_shown[:0]
    columns = [
        *("who", "optimizer", "setting", "arm", "tax", "tax_low", "tax_high", "tax_n", "tax_from"),
        *("tax_why", "source", "converted"),
    ]
    table = pd.concat([rows_shown.assign(who="these trials"), reported_taxes()])
    if len(left_out):
        why = f"{len(left_out)} more have one seed or fewer than {ENOUGH_UPDATES} updates: gaps.csv"
        table = pd.concat([table, pd.DataFrame({"who": ["these trials"], "tax_why": [why]})])
    return table.reindex(columns=columns)


def _best(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    table = best(trials).rename(columns=ENDS)
    return table.drop(columns=["task", "point", "point_sync"])


def _per_setting(statistic: Callable[[pd.DataFrame], pd.DataFrame], mean: str) -> Data:
    """Return the data of a table of trials alone, with the interval of its column `mean`."""
    ends = {"low": f"{mean}_low", "high": f"{mean}_high"}

    def data(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
        table = statistic(trials).drop(columns="point", errors="ignore")
        return without_constant_setting(table.rename(columns=ends))

    return data


def _overhead(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Return memory in GiB and speed in tokens/s.

    The columns of speed are left out where no trial had a machine for itself.
    """
    table = overhead(trials)
    table["memory"] /= GIB
    table = table.rename(columns={"memory": "memory (GiB)", "speed": "speed (tokens/s)"})
    of_speed = [name for name in table if str(name).startswith("speed")]
    return table if (table["speed n"] > 0).any() else table.drop(columns=of_speed)


GAP_WORDS = (
    "Gap: final validation loss of the arm minus that of sync, same point and seed, in nats per "
    "token; mean over n pairs that both completed [95 % interval]. diverged: pairs in which only "
    f"the arm did. Outside of the regime of the paper: {SHORT} (the momentum's memory "
    f"is a part of the run), or {INACTIVE} (learning rate x decay x {MEAN_FACTOR:g} T below "
    f"{DECAYED:g})."
)
SCORE_WORDS = (
    "Accuracy: lm-eval's acc; normalized: its acc_norm; bits per byte, margin, share: of the right "
    "answer, which see more than accuracy in a small model. Differences to sync [95 % "
    "interval over n seeds and the questions, two-way crossed]; detectable: the difference in "
    "accuracy that it would show with a probability of 80 %."
)
ONE_SEED = (
    f" {CHECKPOINTS.capitalize()}: of one seed; its interval is over questions alone, and says of "
    "these two models, not of the arms, which of them scores higher; p: McNemar's exact test."
)

TABLES = (
    Table(
        "token_taxes",
        "Token tax",
        _taxes,
        note=(
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
        note=GAP_WORDS,
        at_scale=beside_paper,
        source="tables 1, 2 (360M)",
        sweeps=("main", "optimizers", "synchronous_start"),
    ),
    Table(
        "table1_2_protocols",
        "Gaps at AdamW's learning rate and weight decay, and at each optimizer's own",
        protocols,
        note=(
            f"{GAP_WORDS} The paper searches both on AdamW and uses them for every optimizer but "
            "Lion. Gap removed: the share by Error Feedback (EF)."
        ),
        source="tables 1, 2 (360M)",
        sweeps=("tuned_shared", "tuned_own"),
    ),
    Table(
        "table3_horizon",
        "Final losses at the longest horizon",
        longest,
        note=f"{GAP_WORDS} The paper's, a 10B mixture of experts, is not trained here.",
        source="table 3 (10B MoE)",
        sweeps=("horizon",),
    ),
    Table(
        "table3_families",
        "Final losses of a dense model, a mixture of experts and a hybrid",
        losses,
        note=GAP_WORDS,
        source="table 3 (10B MoE)",
        sweeps=("families",),
    ),
    Table(
        "table4_downstream",
        "Downstream scores beside those of sync",
        table4,
        note=SCORE_WORDS + ONE_SEED,
        source="table 4 (10B MoE)",
    ),
    Table(
        "best_over_grid",
        "The best setting of each arm against the best one of sync",
        _best,
        note=(
            "gap: each setting chosen for each seed on the other seeds, and compared on "
            "that one; the other gap: chosen and compared on the same seeds, which flatters."
        ),
        source="figure 13",
        sweeps=("batch_size", "learning_rate", "model_size", "moe_learning_rate"),
    ),
    Table(
        "tableF_overhead",
        "Memory and speed beside sync",
        _overhead,
        note=(
            "Medians over the trials; ratios: median over pairs of the same point, seed "
            "and device. Trials that ran side by side share a machine, so that their speed says "
            "nothing: it is left out, and n trials are left."
        ),
        source="appendix F",
        sweeps=("main", "optimizers"),
    ),
    Table(
        "remedies",
        "What each remedy leaves of the delay's cost, and what it costs",
        remedies,
        note=(f"{GAP_WORDS} Memory, time: the peak and the time per token, over sync's."),
        sweeps=("corrections", "remedies"),
    ),
    Table(
        "spikes",
        "The loss where the delay is switched on",
        _per_setting(spikes, "mean_height"),
        note=(
            "height: mean train loss of the first 10 updates with the delay, minus that of the "
            "same seed's sync arm over the same updates; recovery: updates until the loss is back "
            "where it was before the switch."
        ),
    ),
    Table(
        "lateness",
        "How near late updates are to the fresh ones",
        _per_setting(lateness, "cosine"),
        note=(
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
        _per_setting(lambda trials: compared(lateness(trials)), "difference"),
        note=(
            "difference: the optimizer's mean cosine minus the other's, paired by seed. Nearer if "
            "its interval lies above 0, less near if below."
        ),
        sweeps=("staleness",),
    ),
    Table(
        "gaps",
        "Every gap",
        all_gaps,
        note=(
            f"{GAP_WORDS} Gap removed: share of the plain gap, by the correction "
            "(Fieller), where the plain gap's 99 % interval excludes 0."
        ),
    ),
)
