"""Tables of what was measured beside losses: every public function is a call."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pandas as pd

from analysis.claims.measure import with_key
from analysis.statistics.intervals import mean_interval
from analysis.table.answers import ACCURACY, BITS, title
from analysis.table.names import REPORTED_ARMS, arms, minus
from analysis.table.names import optimizer as name
from findings.code import cells
from findings.code.cells import Markdown, mean, table
from findings.code.published import FINDINGS, TINY, of_sweep, scores, spikes

MEASURES = ("cosine", "error")
DECAY = "optimizer.variance_decay"


def lateness() -> Markdown:
    """How near each arm's late updates are to the fresh ones, beside its gap, and differences."""
    measured = pd.read_csv(FINDINGS / "staleness" / "lateness_tiny.csv")
    trials, gaps = of_sweep("staleness", TINY)
    names, gap_of = arms(trials), gaps.set_index(["optimizer", "arm"]).to_dict("index")
    rows = []
    for (arm, optimizer), runs in measured.groupby(["arm", "optimizer"]):
        means = [_mean(runs[measure]) for measure in MEASURES]
        said = [name(optimizer), names[str(arm)]]
        rows.append([*said, *means, cells.gap(gap_of[optimizer, arm]), str(len(runs))])
    for arm, runs in measured.groupby("arm"):
        of_each = runs.pivot_table(index="seed", columns="optimizer", values=[*MEASURES])
        for first, second in combinations(sorted({*runs["optimizer"]}), 2):
            apart = [of_each[measure, first] - of_each[measure, second] for measure in MEASURES]
            said = [f"{name(first)} minus {name(second)}", names[str(arm)]]
            rows.append([*said, *map(_mean, apart), "", str(apart[0].count())])
    heads = ["optimizer", "arm", "mean cosine", "mean relative error", "gap", "n"]
    return table(heads, rows)


def _mean(values: pd.Series) -> str:
    """A mean to four digits, with its interval."""
    low, high = mean_interval(values.dropna().to_numpy())
    return minus(f"{values.mean():.4f} [{low:.4f}, {high:.4f}]")


def spike() -> Markdown:
    """The height of each spike by β2, and what the synchronous start changes in the end."""
    trials = of_sweep("spike", TINY).trials
    losses = trials.pivot_table(
        index="seed", columns=["optimizer", DECAY, "arm"], values="final_val_loss"
    )
    rows = []
    for optimizer, runs in with_key(trials, spikes(trials), DECAY).groupby("optimizer"):
        heights = runs.pivot_table(index="seed", columns=DECAY, values="height")
        for value, group in runs.groupby(DECAY):
            own = losses[optimizer, value]
            gone = f"{group['recovery'].notna().sum()} of {len(group)}"
            said = [name(optimizer), f"{value:g}", mean(heights[value]), gone]
            rows.append([*said, mean(own["delay+start(0.5)"] - own["delay"]), str(len(group))])
        ends = heights.iloc[:, -1] - heights.iloc[:, 0]
        rows.append([name(optimizer), "largest minus smallest", mean(ends), "", "", str(len(ends))])
    heads = ["optimizer", "β2", "height of the spike", "gone before the end"]
    return table([*heads, "final loss: start minus none, paired", "n"], rows)


def downstream() -> Markdown:
    """Each arm beside sync, task by task, for the published answers of three small models."""
    measured = scores()
    accuracy, bits = (
        measured[measured["measure"] == measure].to_dict("records") for measure in (ACCURACY, BITS)
    )
    rows = [
        [
            *(right["model"], name(right["optimizer"]), REPORTED_ARMS[right["arm"]]),
            *(title(right["task"]), f"{right['sync']:.3f}", _scored(right)),
            "" if pd.isna(right["detectable"]) else f"{right['detectable']:.3f}",
            *(f"{likely['sync']:.3f}", _scored(likely), f"{right['n']} × {right['questions']:,}"),
        ]
        for right, likely in zip(accuracy, bits, strict=True)
    ]
    heads = ["model", "optimizer", "arm", "task", "accuracy of sync", "difference", "detectable"]
    return table([*heads, "bits per byte of sync", "difference", "n"], rows)


def _scored(row: Mapping[Any, Any]) -> str:
    """A difference with its interval."""
    return cells.gap({**row, "gap": row["difference"]})
