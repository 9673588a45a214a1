"""Tables of single studies, of costs, tuning and what was measured beside losses: every public
function is a call."""

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

from analysis.claims.measure import with_key
from analysis.report.table_data import TUNED
from analysis.statistics.intervals import mean_interval
from analysis.statistics.text import tax_text
from analysis.table.answers import ACCURACY, BITS, title
from analysis.table.names import REPORTED_ARMS, arms, minus
from analysis.table.names import optimizer as name
from findings.code import cells
from findings.code.cells import Markdown, groups, mean, selected, table
from findings.code.published import FEW, FINDINGS, TINY, of_sweep, scores, spikes
from sweeps.request.command_line import parse_request
from sweeps.request.expand import points
from trainer.base.build import label

MEASURES = ("cosine", "error")
DECAY = "optimizer.variance_decay"
ALONE = ("delay", "wpipe", "paci", "constant_delay(3)")
"""The arms of `remedies` that no correction or phase has touched, one for each pipeline."""


def lateness() -> Markdown:
    """How near each arm's late updates are to the fresh ones, beside its gap, and differences."""
    measured = pd.read_csv(FINDINGS / "staleness" / "lateness_tiny.csv")
    shown = of_sweep("staleness", TINY)
    names = arms(shown.trials)
    gap_of = shown.gaps.set_index(["optimizer", "arm"]).to_dict("index")
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


def look_ahead() -> Markdown:
    """Sync with a look-ahead beside the delayed run whose Error Feedback looks as far ahead."""
    delayed = groups(of_sweep("overshoot", TINY))
    ahead = pd.read_csv(FINDINGS / "overshoot" / "look_ahead_tiny.csv").set_index("seed")
    rows = []
    for (optimizer, coefficient), trials in ahead.groupby(["optimizer", "coefficient"]):
        own, as_far = trials["final_val_loss"], int(str(coefficient)) + 1
        losses = delayed[optimizer,].losses
        sync, late = losses["sync"], losses[f"delay_ef({as_far})"]
        said = [name(optimizer), f"{coefficient}", f"{as_far}"]
        apart = own - late
        rows.append([*said, *map(mean, (own - sync, late - sync, apart)), str(apart.count())])
    heads = ["optimizer", "λ of sync", "λ of the delay", "sync with it minus sync"]
    return table([*heads, "delay with it minus sync", "the first minus the second", "n"], rows)


def remedies(updates: int) -> Markdown:
    """One row per optimizer and arm of the trials of so many updates, by the pipeline and then by
    the gap.

    What a remedy saves is the gap of its pipeline alone minus its own, paired by seed. Memory is
    that of weights, gradients and states, as a plan counts them; time is that of an update, by
    medians over all trials.
    """
    trials = of_sweep("remedies", TINY).trials
    names, memory = arms(trials), _memory()
    speed = trials.groupby(["optimizer", "arm"])["tokens_per_second"].median()
    rows = []
    for (of,), group in groups(selected("remedies", TINY, f"num_updates_asked={updates}")).items():
        alone = {arm: next(own for own in ALONE if arm.startswith(own)) for arm in group.arms}
        for arm in sorted(group.arms, key=lambda arm: (alone[arm], group.arms[arm]["gap"])):
            row, saved = group.arms[arm], group.losses[alone[arm]] - group.losses[arm]
            ratios = (memory[of, arm] / memory[of, "sync"], speed[of, "sync"] / speed[of, arm])
            shares = [cells.gap(row), "" if arm == alone[arm] else mean(saved), cells.removed(row)]
            costs = [tax_text(row), *map("{:.2f}".format, ratios)]
            rows.append([name(of), names[arm], *shares, *costs])
    heads = ["optimizer", "arm", "gap", "less than without, paired", "gap removed"]
    return table([*heads, "token tax", "memory / sync's", "time / sync's"], rows)


def _memory() -> dict[tuple[str, str], int]:
    """Optimizer and arm → the bytes of a trial of the sweep `remedies`."""
    [sweep] = parse_request(["sweep=remedies", f"scale={TINY}"]).sweeps.values()
    return {
        (label(config["optimizer"]), arm): point.plan(config).memory_bytes
        for point in points(sweep, Path("results"))
        for arm, config in point.configs.items()
    }


def tried(file: str, key: str, title: str) -> Markdown:
    """The learning rates that were tried at each value of a key, with sync's loss, and the chosen
    one where the table has it."""
    trials = pd.read_csv(FINDINGS / f"{file}.csv").rename(columns={"final_val_loss": "loss"})
    has_choice, rows = "chosen" in trials, []
    for value, group in trials.sort_values(TUNED[0]).groupby(key):
        rates = zip(group[TUNED[0]], group["loss"], strict=True)
        said = f"{value:g}" if isinstance(value, float) else _of_point(value)
        best = [f"{group.loc[group['chosen'], TUNED[0]].iloc[0]:g}"] if has_choice else []
        rows.append([said, ", ".join(f"{rate:g} ({loss:.3f})" for rate, loss in rates), *best])
    return table([title, "tried (loss)", *(["chosen"] if has_choice else [])], rows)


def _of_point(point: object) -> str:
    return name(str(point).removeprefix("optimizer="))


def chosen() -> Markdown:
    """Each optimizer's own learning rate and decay, with sync's loss at the seed that chose."""
    tried = pd.read_csv(FINDINGS / "tuned_own" / "tuned_tiny.csv")
    best = {row["point"]: row for row in tried[tried["chosen"]].to_dict("records")}
    adamw = [best["optimizer=adamw"][key] for key in TUNED]
    at_adamws = tried[(tried[[*TUNED]] == adamw).all(axis=1)].set_index("point")["loss"]
    rows = [
        [
            *(_of_point(point), *(f"{row[key]:g}" for key in TUNED), f"{row['loss']:.3f}"),
            *(f"{at_adamws[point]:.3f}", str((tried["point"] == point).sum())),
        ]
        for point, row in best.items()
    ]
    return table(["optimizer", "lr", "decay", "sync loss", "at AdamW's values", "tried"], rows)


def moe_rates() -> Markdown:
    """Mean final losses of `moe_learning_rate`, one column per rate; the lowest of a row stands
    out."""
    trials = of_sweep("moe_learning_rate", FEW).trials.replace({"arm": {"delay": "delayed"}})
    keys = ["optimizer", "num_updates_asked", "arm", "optimizer.lr"]
    losses = trials.groupby(keys)["final_val_loss"].mean().unstack()
    rows = []
    for (optimizer, updates), of_arms in losses.groupby(level=[0, 1]):
        for arm, row in of_arms.droplevel([0, 1]).iloc[::-1].iterrows():
            texts = [f"**{x:.3f}**" if x == row.min() else f"{x:.3f}" for x in row]
            rows.append([f"{name(optimizer)}, {updates:,} updates: {arm}", *texts])
    return table(["learning rate", *map("{:g}".format, losses.columns)], rows)


def largest_error(sweep: str, scale: str) -> str:
    """The largest standard error of a sweep's mean gaps."""
    errors = [
        float(stats.sem(group.gap(arm).dropna()))
        for group in groups(of_sweep(sweep, scale)).values()
        for arm in group.losses.columns.drop("sync")
    ]
    return f"The largest standard error of these {len(errors)} gaps is {max(errors):.4f}."


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
