"""The data of the paper's tables, and the paper's own numbers (arXiv 2606.30634).

The paper's numbers are those that public summaries state.
"""

from collections.abc import Hashable
from typing import Any

import pandas as pd

from pipegap.analysis.claims.measure import DELAY
from pipegap.analysis.statistics.downstream import downstream
from pipegap.analysis.statistics.pairs import overhead
from pipegap.analysis.statistics.tax import paper_losses
from pipegap.analysis.table.answers import MEASURES
from pipegap.analysis.table.tasks import in_order

SCALE = "360m"
"""The scale of tables 1 and 2."""
LOSSES = paper_losses()
"""Tables 1 and 2: final validation losses by optimizer and arm; missing numbers are open."""
SCALE_OF_SCORES = "10b"
"""The scale of table 4."""
SCORES = {"mmlu": (0.411, 0.407), "hellaswag": (0.670, 0.673), "piqa": (0.775, 0.778)}
"""Table 4: sync and delay with Error Feedback, of one run each; missing numbers are open."""

TUNED = ("optimizer.lr", "optimizer.weight_decay")
LEADER = "adamw"
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
    rows_shown = _with_pairs(gaps).merge(values, on="point")
    rates = pd.MultiIndex.from_frame(rows_shown[[*TUNED]])
    is_shared = rates.isin(rates[rows_shown["optimizer"] == LEADER])
    rows_shown["rates"] = pd.Series(is_shared).map({True: SHARED, False: OWN})
    plain, fed = (rows_shown[rows_shown["arm"] == arm] for arm in ("delay", "delay_ef"))
    if not (plain.groupby("optimizer")["rates"].nunique() > 1).any():
        return plain[:0]
    of_feedback = {name: f"EF {name}" for name in OF_DELAY[:3]}
    feedback_rows = fed.set_index("point")[[*of_feedback, *OF_FEEDBACK[:3]]].rename(
        columns=of_feedback
    )
    table = plain.drop(columns=[*OF_FEEDBACK[:3]]).join(feedback_rows, on="point")
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
    scores = SCORES.get(task, ()) if scale == SCALE_OF_SCORES else ()
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
