"""The tables of a report: their data, the paper's own numbers, and the tables as they are drawn."""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import pandas as pd

from pipegap.analysis.claims.measure import DELAY
from pipegap.analysis.statistics.diagnostics import (
    CHECKPOINTS,
    compared,
    downstream,
    lateness,
    spikes,
)
from pipegap.analysis.statistics.gaps import DECAYED, INACTIVE, MEAN_FACTOR, SHORT, best
from pipegap.analysis.statistics.pairs import ENOUGH_UPDATES, overhead
from pipegap.analysis.statistics.tax import paper_losses, reported_taxes
from pipegap.analysis.table.metrics import MEASURES
from pipegap.analysis.table.points import in_order

# The data of the paper's tables, and the paper's own numbers (arXiv 2606.30634).
#
# The paper's numbers are those that public summaries state.

SCALE = "360m"
"""The scale of tables 1 and 2."""
LOSSES = paper_losses()
"""Tables 1 and 2: final validation losses by optimizer and arm; missing numbers are open."""
SCORES = {"mmlu": (0.411, 0.407), "hellaswag": (0.670, 0.673), "piqa": (0.775, 0.778)}
"""Table 4: sync and delay with Error Feedback, of one run each; missing numbers are open."""

TUNED = ("optimizer.lr", "optimizer.weight_decay")
SHARED, OWN = "AdamW's", "its own"
OF_POINT = ("optimizer", "rates", *TUNED, "loss_sync")
OF_DELAY = ("gap", "gap_low", "gap_high", "n", "diverged")
OF_FEEDBACK = ("removed", "removed_low", "removed_high", "regime")
REMEDIES = (
    *("optimizer", "setting", "delay", "arm", "n", "gap", "gap_low", "gap_high", "diverged"),
    *("removed", "removed_low", "removed_high", "tax", "tax_low", "tax_high"),
    *("memory ratio", "time ratio", "time n", "regime"),
)
ENDS = {"low": "gap_low", "high": "gap_high"}
"""The ends of the interval of a gap, as tables call them."""
KEYS = ["optimizer", "setting", "arm", "task", "n", "questions", "of"]
OF_LOSSES = [
    *("optimizer", "setting", "arm", "regime", "pairs", "n", "diverged"),
    *("loss_sync", "loss", "gap", "low", "high"),
]
"""Columns of the gaps that the table of losses shows."""


def losses(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Return one row per point: final losses, gaps, numbers of pairs, and the paper's numbers.

    The losses are means of sync, delay, Error Feedback and synchronous starts; the gaps are those
    of the last three.
    """
    # The plain delay with a synchronous start, and without a correction.
    is_started = (gaps["base_arm"] == gaps["arm"]) & (gaps["start"] > 0)
    starts = sorted({*gaps.loc[is_started & (gaps["schedule"] == DELAY), "arm"]})
    groups = gaps[OF_LOSSES].groupby(["optimizer", "setting"], sort=False)
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
    return pd.DataFrame(rows).pipe(without_regime).pipe(without_constant_setting)


def _of_point(rows: pd.DataFrame, arms: list[str]) -> dict[str, Any]:
    """Return losses, gaps and counts of each arm; an arm that is missing has n=0."""
    by_arm: dict[Any, dict[Hashable, Any]] = {}
    for row in rows.to_dict("records"):
        # Rows are sorted by stages: of an arm of several depths that of the fewest counts.
        by_arm.setdefault(row["arm"], row)
    reached = (row["loss_sync"] for row in by_arm.values() if not pd.isna(row["loss_sync"]))
    cells: dict[str, Any] = {"sync": next(reached, None)}
    for arm in arms:
        row = by_arm.get(arm, {})
        gap = f"{arm} gap"
        cells |= {arm: row.get("loss"), gap: row.get("gap")}
        cells |= {f"{gap}_low": row.get("low"), f"{gap}_high": row.get("high")}
        cells |= {f"{arm} n": row.get("n", 0), f"{arm} diverged": row.get("diverged", 0)}
    return cells


def longest(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Return `losses` of each optimizer's points with the most tokens."""
    tokens = trials.groupby("point")["tokens"].max()
    of_gap = gaps["point"].map(tokens)
    most = of_gap.groupby(gaps["optimizer"]).transform("max")
    # Of no scale: the paper trains another model there, whose numbers would mislead.
    return losses(trials, gaps[of_gap == most], "")


def all_gaps(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Return every gap that has a pair."""
    columns = [
        *("optimizer", "setting", "arm", "num_stages", "num_microbatches"),
        *("loss_sync", "loss", "gap", "gap_low", "gap_high", "n", "diverged", "pairs"),
        *("removed", "removed_low", "removed_high", "removed_n", "regime"),
    ]
    return without_constant_setting(without_regime(_with_pairs(gaps)[columns]))


def _with_pairs(gaps: pd.DataFrame) -> pd.DataFrame:
    return gaps[gaps["pairs"] > 0].rename(columns=ENDS)


def protocols(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Return one row per point with a pair of the plain delay, optimizer by optimizer.

    `rates` says whether learning rate and weight decay are those of a point of AdamW. No row is
    left where no optimizer has a point of each kind, since there is nothing to compare.
    """
    values = trials.reindex(columns=["point", *TUNED]).drop_duplicates("point")
    paired = _with_pairs(gaps).merge(values, on="point")
    # Both keys together: a rate of AdamW with the decay of another point is no point of it.
    rates = pd.MultiIndex.from_frame(paired[[*TUNED]])
    is_shared = rates.isin(rates[paired["optimizer"] == "adamw"])
    paired["rates"] = pd.Series(is_shared).map({True: SHARED, False: OWN})
    plain, corrected = (paired[paired["arm"] == arm] for arm in ("delay", "delay_ef"))
    if not (plain.groupby("optimizer")["rates"].nunique() > 1).any():
        return plain[:0]
    of_feedback = {name: f"EF {name}" for name in OF_DELAY[:3]}
    corrected = corrected.set_index("point")[[*of_feedback, *OF_FEEDBACK[:3]]]
    table = plain.drop(columns=[*OF_FEEDBACK[:3]])
    table = table.join(corrected.rename(columns=of_feedback), on="point")
    order = ["optimizer", "rates", *TUNED]
    columns = [*OF_POINT, *OF_DELAY, *of_feedback.values(), *OF_FEEDBACK]
    return in_order(table, order).reset_index(drop=True)[columns]


def remedies(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Return one row per optimizer, setting and arm that has a pair.

    For each delay the rows are sorted from the smallest gap on. Ratios of peak memory and time per
    token are to sync's, medians of the optimizer's trials with this arm. Time counts where a trial
    had its machine for itself, as `time n` trials did.
    """
    cost = overhead(trials, arms=[*trials["arm"].unique()])
    # One arm of an optimizer usually runs on one device; of several the most frequent counts.
    cost = cost.sort_values("n", ascending=False).drop_duplicates(["optimizer", "arm"])
    cost = cost.assign(**{"time ratio": 1 / cost["speed ratio"], "time n": cost["speed n"]})
    cost_columns = cost[["optimizer", "arm", "memory ratio", "time ratio", "time n"]]
    table = _with_pairs(gaps).merge(cost_columns, on=["optimizer", "arm"], how="left")
    order = ["optimizer", "setting", "delay", "gap"]
    return in_order(table, order, gaps).reset_index(drop=True)[[*REMEDIES]]


def table4(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    """Return one row per optimizer, point, arm and task; none without answers."""
    scores = downstream(trials)
    groups = scores.groupby([*KEYS, "point", "num_stages", "num_microbatches"], sort=False)
    rows = [
        {
            # The key is longer: what follows KEYS tells rows apart, and is not shown.
            **dict(zip(KEYS, key, strict=False)),
            **_scores(of_task),
            **reported_scores(scale, str(of_task["task"].iloc[0])),
        }
        for key, of_task in groups
    ]
    return without_constant(pd.DataFrame(rows), "setting", "p")


def _scores(rows: pd.DataFrame) -> dict[str, Any]:
    """Return for each measure sync's score and the difference, and more of accuracy."""
    by_measure: dict[Any, dict[Any, Any]] = rows.set_index("measure").to_dict("index")
    cells: dict[str, Any] = {}
    for measure in MEASURES:
        score, name = by_measure[measure], f"{measure} difference"
        cells |= {f"{measure} sync": score["sync"], name: score["difference"]}
        cells |= {f"{name}_low": score["low"], f"{name}_high": score["high"]}
    accuracy = by_measure["accuracy"]
    return cells | {"detectable": accuracy["detectable"], "p": accuracy["p"]}


def reported(scale: str, optimizer: str) -> dict[str, float]:
    """Return the losses of tables 1 and 2 as columns `paper sync`, …; none at any other scale."""
    losses = LOSSES.get(optimizer, {}) if scale == SCALE else {}
    return {f"paper {arm}": loss for arm, loss in losses.items()}


def reported_scores(scale: str, task: str) -> dict[str, float]:
    """Return the scores of table 4 as columns `paper sync`, …; none at another scale."""
    scores = SCORES.get(task, ()) if scale == "10b" else ()
    return {f"paper {arm}": score for arm, score in zip(("sync", "delay_ef"), scores, strict=False)}


def beside_paper(scale: str) -> str:
    """Say whether numbers of a scale may be compared with those of tables 1 and 2."""
    if scale == SCALE:
        return "paper: tables 1 and 2 of arXiv 2606.30634, the same model, tokens and data; n=1."
    return (
        f"The paper's tables 1 and 2 are of {SCALE}, these numbers are of "
        f"{scale or 'trials of no sweep'}: the scale does not match, and so they are not set "
        "beside each other."
    )


def without_regime(table: pd.DataFrame) -> pd.DataFrame:
    """Leave out the column `regime` where every point is within the paper's regime."""
    within = "regime" in table and (table["regime"] == "").all()
    return table.drop(columns="regime") if within else table


def without_constant_setting(table: pd.DataFrame) -> pd.DataFrame:
    """Leave out setting, stages and microbatches where they do not tell rows apart."""
    return without_constant(table, "setting", "num_stages", "num_microbatches")


def without_constant(table: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Leave out those of the named columns that do not tell rows apart."""
    constant = [name for name in names if name in table and table[name].nunique() <= 1]
    return table.drop(columns=constant)


# The tables of a report: each is a function of trials and gaps, and is registered here.

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
    paired = gaps[gaps["pairs"] > 0]
    updates = paired["point"].map(trials.groupby("point")["num_updates"].max())
    is_weak = (paired["tax_n"] == 1) | (updates < ENOUGH_UPDATES)
    rows = paired[~is_weak]
    if not (rows["tax_n"] > 0).any():
        return rows[:0]
    columns = [
        *("who", "optimizer", "setting", "arm", "tax", "tax_low", "tax_high", "tax_n", "tax_from"),
        *("tax_why", "source", "converted"),
    ]
    table = pd.concat([rows.assign(who="these trials"), reported_taxes()])
    if num_left := int(is_weak.sum()):
        why = f"{num_left} more have one seed or fewer than {ENOUGH_UPDATES} updates: gaps.csv"
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
    table["memory"] /= 2**30
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
        note=(
            "Accuracy: lm-eval's acc; normalized: its acc_norm; bits per byte, margin, share: of "
            "the right answer, which see more than accuracy in a small model. Differences to sync "
            "[95 % interval over n seeds and the questions, two-way crossed]; detectable: the "
            "difference in accuracy that it would show with a probability of 80 %. "
            f"{CHECKPOINTS.capitalize()}: of one seed; its interval is over questions alone, and "
            "says of these two models, not of the arms, which of them scores higher; p: McNemar's "
            "exact test."
        ),
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
        sweeps=("batch_size", "learning_rate", "moe_learning_rate"),
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
