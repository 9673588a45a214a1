"""The tables of gaps. Every public function is a call that a page may make."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis import best
from analysis.statistics.intervals import CONFIDENCE, mean_interval
from analysis.statistics.tax import MAIN_ARMS, best_taxes, paper_losses, reported_taxes
from analysis.statistics.text import gap_table, tax_text
from analysis.table.names import REPORTED_ARMS, arms, settings
from analysis.table.names import optimizer as name
from findings.code import cells
from findings.code.cells import (
    Groups,
    Markdown,
    TrialGroup,
    groups,
    listed,
    mean,
    quantity,
    selected,
    table,
    together,
)
from findings.code.published import FEW, TINY, View, of_sweep, view
from trainer.base.cli import one_of


def rows(
    sweep: str, scale: str, columns: str, sort: str = "", key: str = "", only: str = ""
) -> Markdown:
    """One row per optimizer, or per optimizer and value of `key`.

    `columns`: `HEAD: QUANTITY WORDS; …`. `sort`: the quantity by which the rows are sorted; rows
    without it are left out. `only`: `KEY=VALUE` of the trials that are shown.
    """
    shown = [*groups(selected(sweep, scale, only), *([key] if key else [])).values()]
    if sort:
        number = quantity(sort).value
        shown = [group for group in shown if number(group) is not None]
        shown.sort(key=lambda group: np.mean(number(group)))
    quantities = [quantity(words) for _, words in listed(columns)]
    lines = [[text(value(group)) for value, text in quantities] for group in shown]
    return table([head for head, _ in listed(columns)], lines)


def apart(sweep: str, scale: str, arm: str, optimizer: str) -> Markdown:
    """The gap of this optimizer's arm minus that of each other optimizer's, paired by seed."""
    gaps = {of: group.gap(arm) for (of,), group in groups(of_sweep(sweep, scale)).items()}
    own = gaps.pop(optimizer)
    rows = [[name(of), mean(own - gap), str((own - gap).count())] for of, gap in gaps.items()]
    return table(["optimizer", f"gap of {name(optimizer)} minus its gap", "n"], rows)


def along(
    sweep: str,
    scale: str,
    key: str,
    lines: str,
    title: str = "",
    head: str = "{}",
    columns: str = "*",
    then: str = "",
    only: str = "",
) -> Markdown:
    """One column per value of `key`; for each optimizer one row per quantity of `lines`.

    `key`: a key of the trials; `optimizer`, which makes one row per quantity; `sweep`, with several
    names in `sweep`; or `λ METHOD`, the coefficient of a correction, 0 for the plain delay, whose
    arm is called `λ`. `head` formats a value. `columns`: `HEAD: VALUE; …`, `*` for all others.
    `then`: more columns, `HEAD: VALUE minus VALUE`, paired by seed; `HEAD: VALUE for VALUE`,
    whether the first may stand for the second; `n`, the pairs of the delay.
    """
    shown = _along(sweep, scale, key, only)
    every = sorted({value for _, value in shown}, key=lambda value: (isinstance(value, str), value))
    values = {head.format(value): value for value in every}
    heads = dict(listed(columns))
    if heads.pop("*", None):
        heads |= {value: value for value in values if value not in heads.values()}
    if unknown := {*heads.values()} - {*values}:
        raise one_of("column", min(unknown), [*values])
    beside = listed(then)
    made = []
    for optimizer in dict.fromkeys(optimizer for optimizer, _ in shown):
        at = {said: shown[optimizer, value] for said, value in values.items()}
        for said, words in listed(lines):
            value_of, text = quantity(words)
            cells_at = {value: value_of(group) for value, group in at.items()}
            texts = [text(cells_at[value]) for value in heads.values()]
            more = [_beside(words, cells_at, at, text) for _, words in beside]
            made.append([f"{name(optimizer) if optimizer else ''}{said}", *texts, *more])
    return table([title, *heads, *(head for head, _ in beside)], made)


def _along(sweep: str, scale: str, key: str, only: str) -> Groups:
    """(optimizer, value of the key) → its group."""
    if key == "sweep":
        views = {name: groups(selected(name, scale, only)) for name in sweep.split(",")}
        return {(at[0], name): group for name, of in views.items() for at, group in of.items()}
    if key == "optimizer":
        return {("", at[0]): group for at, group in groups(selected(sweep, scale, only)).items()}
    if key.startswith("λ "):
        return {
            (optimizer, 0.0 if arm == "delay" else row["coefficient"]): _called(group, arm)
            for (optimizer,), group in groups(selected(sweep, scale, only)).items()
            for arm, row in group.arms.items()
            if arm == "delay" or row["method"] == key.removeprefix("λ ")
        }
    return groups(selected(sweep, scale, only), key)


def _called(group: TrialGroup, arm: str) -> TrialGroup:
    """The group with one of its arms also called `λ`."""
    losses = group.losses.assign(λ=group.losses[arm])
    return group._replace(arms={**group.arms, "λ": group.arms[arm]}, losses=losses)


def _beside(
    words: str, cells_at: Mapping[str, Any], at: Mapping[str, TrialGroup], text: Callable[..., str]
) -> str:
    """What `then` asks for of the values, and the groups, of each column."""
    if words == "n":
        return together(group.arms["delay"]["n"] for group in at.values())
    second, how, first = re.split(r" (minus|for) ", words)
    if how == "for":
        return _stands(cells_at[second], cells_at[first]) if text is mean else ""
    is_paired = isinstance(cells_at[first], pd.Series)
    return mean(cells_at[second] - cells_at[first]) if is_paired else ""


def _stands(gaps: pd.Series, others: pd.Series) -> str:
    """Whether these gaps may stand for the others, by the rule of the sweep `dtype`."""
    low, high = mean_interval((gaps - others).dropna().to_numpy())
    margin = 0.2 * abs(others.mean())
    if -margin < low and high < margin:
        return "yes"
    return "no" if low > margin or high < -margin else "not enough data"


def every_arm(sweep: str, scale: str) -> Markdown:
    """One row per point and arm that has a pair, by optimizer, point and gap; columns that would be
    empty are left out."""
    trials, rows = of_sweep(sweep, scale).trials, of_sweep(sweep, scale).gaps
    names, at = arms(trials), settings(trials)
    shown = rows[rows["pairs"] > 0].assign(at=rows["point"].map(at).fillna(""))
    lines = [
        [
            *(name(row["optimizer"]), row["at"], names[row["arm"]], f"{row['loss_sync']:.3f}"),
            *(cells.gap(row), cells.removed(row), str(row["n"]), str(row["diverged"] or "")),
        ]
        for row in shown.sort_values(["optimizer", "at", "gap"], kind="stable").to_dict("records")
    ]
    heads = ["optimizer", "at", "arm", "sync loss", "gap", "gap removed", "n", "diverged"]
    kept = [place for place, _ in enumerate(heads) if any(line[place] for line in lines)]
    return table([heads[i] for i in kept], [[line[i] for i in kept] for line in lines])


def main(front: int = 0) -> Markdown:
    """The table that `python -m analysis` prints, of the README's job or of `few_updates`."""
    shown = view("front") if front else of_sweep("main", FEW)
    return Markdown(gap_table(shown.gaps).strip())


def taxes() -> Markdown:
    """Our token taxes at `few_updates`, each at the point of the lowest loss of sync."""
    rows = best_taxes(view("lengths").gaps).to_dict("records")
    lines = [
        [name(r["optimizer"]), REPORTED_ARMS[r["arm"]], tax_text(r), str(r["tax_n"])] for r in rows
    ]
    return table(["optimizer", "arm", "token tax [95 %] (from)", "n"], lines)


def taxes_of_others() -> Markdown:
    """The token taxes that others report."""
    lines = [
        [
            *(name(row["optimizer"]), REPORTED_ARMS[row["arm"]], f"{row['tax']:.2f}"),
            *(row["tax_from"], row["who"]),
        ]
        for row in reported_taxes().to_dict("records")
    ]
    return table(["optimizer", "arm", "token tax", "from", "of"], lines)


def best_points(scale: str) -> Markdown:
    """Each arm of the sweep over batch sizes at its own best point of the grid."""
    lines = [
        [
            *(name(row["optimizer"]), cells.gap(row), str(row["n"])),
            *(row["setting_sync"], row["setting"]),
        ]
        for row in best(of_sweep("batch_size", scale).trials).to_dict("records")
    ]
    heads = ["optimizer", "best delay minus best sync", "n", "sync's point", "the delay's point"]
    return table(heads, lines)


def regimes() -> Markdown:
    """The gap of the delay in few large updates, in many small ones, and in the paper's run."""
    few, many = _regime(of_sweep("main", FEW)), _regime(of_sweep("shared_rate", TINY))
    paper = {of: f"{arms['delay'] - arms['sync']:+.3f}" for of, arms in paper_losses().items()}
    columns = (few, many, ("the paper, 360M", paper))
    rows = [[name(key), *(shown.get(key, "") for _, shown in columns)] for key in many[1]]
    return table(["gap of the delay", *(head for head, _ in columns)], rows)


def _regime(shown: View) -> tuple[str, dict[str, str]]:
    """What an update is, and the gap of the delay of each optimizer."""
    first = shown.trials.iloc[0]
    size = f"{first['batch_size']:g} × {first['seq_len']:g}"
    head = f"{first['num_updates']:,} updates of {size} bytes, lr {first['optimizer.lr']:g}"
    return head, {at[0]: _counted(group.arms["delay"]) for at, group in groups(shown).items()}


def _counted(row: cells.Row) -> str:
    return f"{cells.gap(row)} (n={row['n']})"


def replication() -> Markdown:
    """Gaps of the first seeds, of the others and of all, and the standard error of the last."""
    first, other = "shared_rate tiny", "main tiny"
    before, again, both = (groups(view(*names)) for names in ((first,), (other,), (first, other)))
    lines = []
    for at in again:
        for arm in MAIN_ARMS:
            last = both[at].arms[arm]
            half = (last["high"] - last["low"]) / 2  # of Student's interval
            error = half / stats.t.ppf((1 + CONFIDENCE) / 2, last["n"] - 1)
            counted = [_counted(of_seeds[at].arms[arm]) for of_seeds in (before, again)]
            said = [name(at[0]), REPORTED_ARMS[arm], *counted]
            lines.append([*said, cells.gap(last), f"{error:.4f}"])
    heads = ["optimizer", "arm", "the first seeds", "the others", "all", "standard error of all"]
    return table(heads, lines)
