"""Tables in Markdown: their rows are groups of trials, their cells are quantities of arms."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from analysis.statistics.intervals import mean_interval
from analysis.statistics.text import tax_text
from analysis.table.names import minus
from analysis.table.names import optimizer as name
from analysis.table.text import markdown
from findings.code.published import View
from trainer.base.cli import one_of

Row = Mapping[Any, Any]


class Markdown(str):
    """Text that a page shows line by line; other text is wrapped."""


def gap(row: Row | None) -> str:
    """`+0.153 [+0.102, +0.204]`; of one pair `+0.153`."""
    if row is None or not row["n"]:
        return ""
    if pd.isna(row["low"]):
        return minus(f"{row['gap']:+.3f}")
    return minus(f"{row['gap']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]")


def removed(row: Row | None) -> str:
    """The share of the gap that a correction removes: `52 % [30, 70]`."""
    if row is None or pd.isna(row["removed"]):
        return ""
    low, high = (f"{100 * row[end]:.0f}" for end in ("removed_low", "removed_high"))
    return minus(f"{100 * row['removed']:.0f} % [{low}, {high}]")


def loss(row: Row | None) -> str:
    """The mean final loss of sync."""
    return "" if row is None else f"{row['loss_sync']:.3f}"


def mean(differences: pd.Series) -> str:
    """The mean of paired differences with its interval, as a gap is written."""
    values = differences.dropna().to_numpy()
    low, high = mean_interval(values)
    return gap({"n": len(values), "gap": values.mean(), "low": low, "high": high})


def mean_and_count(differences: pd.Series) -> tuple[str, str]:
    """The mean of paired differences, and their number."""
    return mean(differences), str(differences.count())


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Markdown:
    """A table in Markdown."""
    return Markdown(re.sub(r"\|  (?=\|)", "| ", markdown(heads, rows)))


class TrialGroup(NamedTuple):
    """What was measured of one optimizer, at one value of each key."""

    arms: Mapping[str, Row]
    """Arm → its row in the table of gaps; arms without a pair are missing."""
    losses: pd.DataFrame
    """Final losses, one row per seed, one column per arm."""
    trial: Row
    """One of the trials."""


Groups = Mapping[tuple[Any, ...], TrialGroup]
"""(optimizer, value of each key …) → its group."""
Quantity = Callable[[TrialGroup], str]
"""What makes a cell of a group."""


def groups(view: View, *keys: str) -> Groups:
    """The groups of a view in the order of its gaps; each point belongs to one group."""
    points = view.trials.drop_duplicates("point").set_index("point")
    rows = view.gaps[view.gaps["pairs"] > 0]
    rows = rows.drop(columns=[key for key in keys if key in rows]).join(points[[*keys]], on="point")
    made = {}
    for at, of_group in rows.groupby(["optimizer", *keys], sort=False):
        trials = view.trials[view.trials["point"].isin(of_group["point"])]
        losses = trials.pivot_table(index="seed", columns="arm", values="final_val_loss")
        arms = {row["arm"]: row for row in of_group.to_dict("records")}
        made[at] = TrialGroup(arms, losses, trials.iloc[0].to_dict())
    return made


def gap_of(arm: str) -> Quantity:
    """The gap of an arm."""
    return lambda group: gap(group.arms.get(arm))


def removed_by(arm: str) -> Quantity:
    """The share of the gap that an arm removes."""
    return lambda group: removed(group.arms.get(arm))


def tax_of(arm: str) -> Quantity:
    """The token tax of an arm."""
    return lambda group: tax_text(group.arms[arm])


def less(arm: str, other: str) -> Quantity:
    """The final loss of an arm minus that of another one, paired by seed."""
    return lambda group: mean(group.losses[arm] - group.losses[other])


def count_of(*arms: str) -> Quantity:
    """The number of pairs of these arms: `8`, or `5 and 4` where it differs."""
    return lambda group: together(str(group.arms[arm]["n"]) for arm in arms if arm in group.arms)


def together(counts: Iterable[str]) -> str:
    """`8`, or `5 and 4` where counts differ."""
    return " and ".join(dict.fromkeys(counts))


def value_of(key: str) -> Quantity:
    """The value of a key in the trials."""
    return lambda group: f"{group.trial[key]:g}"


def optimizer_of(group: TrialGroup) -> str:
    """The name of the optimizer."""
    return name(group.trial["optimizer"])


def sync_loss(group: TrialGroup) -> str:
    """The mean final loss of sync."""
    return loss(group.arms.get("delay"))


def diverged(arm: str) -> Quantity:
    """How many pairs of an arm diverged."""
    return lambda group: f"{group.arms[arm]['diverged']} of {group.arms[arm]['pairs']}"


QUANTITIES: Mapping[str, Callable[..., Quantity]] = {
    "optimizer": lambda: optimizer_of,
    "model": lambda: lambda group: f"`{group.trial['model']}`",
    "sync loss": lambda: sync_loss,
    **{"gap": gap_of, "removed": removed_by, "tax": tax_of, "less": less},
    **{"n": count_of, "value": value_of, "diverged": diverged},
}
"""Name of a quantity → what makes it of the words that follow the name."""


def quantity(words: str) -> Quantity:
    """What `less delay_ef delay` and such words ask for. Raises BadInput for other words."""
    name_of_it, *arms = [words] if words in QUANTITIES else words.split()
    if name_of_it not in QUANTITIES:
        raise one_of("quantity", name_of_it, [*QUANTITIES])
    return QUANTITIES[name_of_it](*arms)


def by_value(
    title: str, rows: Groups, lines: Mapping[str, Quantity], head: str, *, counted: bool = True
) -> Markdown:
    """One column per value of a key; for each optimizer one row per quantity of `lines`.

    `rows`: by optimizer and value. `head` formats a value. `counted`: a last column counts the
    pairs of the delay.
    """
    values = sorted({value for _, value in rows})
    made = []
    for optimizer in sorted({optimizer for optimizer, _ in rows}):
        at = [rows[optimizer, value] for value in values]
        n = [together(map(count_of("delay"), at))] if counted else []
        made += [[f"{name(optimizer)}{said}", *map(cell, at), *n] for said, cell in lines.items()]
    return table([title, *map(head.format, values), *(["n"] if counted else [])], made)
