"""The task of a point: the settings that tuning leaves alone, and how long it trains; and the order
of optimizers by their losses at one task."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pipegap.analysis.table.points import by_point, group_of, in_words, labelled, varied
from pipegap.trainer.base.status import FINAL

TUNED = (
    *("optimizer", "lr_schedule", "batch_size", "clip_norm", "clip_scope"),
    *("eval_every", "eval_tokens"),
)
"""Groups and keys that people tune: settings of one task differ in these alone."""
LENGTH = ("num_updates", "tokens_per_parameter")
"""The keys that say how long a trial trains."""
DECAY = "optimizer.weight_decay"
NO_KEYS = ("data_hash", "point")
"""Columns that may tell points apart, and are no keys of the config."""


PLAIN, FEEDBACK = "delay", "delay_ef"
"""Families of arms: those that differ in the coefficient of Error Feedback are one."""
IN_ORDER = ("optimizer", "panel")
"""Columns that tables sort by the order in which their values appear, and not by name."""


def by_loss(trials: pd.DataFrame) -> list[str]:
    """Return the optimizers of these trials, the one of the lowest final loss first.

    Losses of different models, data or numbers of tokens cannot be compared: those count that most
    optimizers have, of these the ones of the most work. At the longest runs these are the losses of
    delayed runs in the time of 1F1B, where a sweep trained such runs. An optimizer's loss is the
    lowest mean of a delayed arm (of any arm where nothing was delayed) among its settings with the
    most seeds; one seed that diverged makes it infinite. Optimizers without a loss come last, and
    equal ones stand by name.
    """
    optimizers = sorted({*trials["optimizer"].dropna()})
    done = trials[trials["status"].isin(FINAL)]
    delayed = done[done["family"].isin([PLAIN, FEEDBACK])]
    done = done if delayed.empty else delayed
    if len(optimizers) < 2 or done.empty:
        return optimizers
    tokens = tokens_asked(done)
    table = pd.DataFrame(
        {
            **{name: done[name] for name in ("optimizer", "point", "arm")},
            "task": [*zip(done["num_parameters"], done["data_hash"], tokens, strict=True)],
            "work": (done["num_parameters"] * tokens).astype(float),
            "loss": done["final_val_loss"].astype(float).fillna(np.inf),
        }
    )
    of_tasks = table.groupby("task").agg(num=("optimizer", "nunique"), work=("work", "max"))
    task = of_tasks.sort_values(["num", "work"]).index[-1]
    of_arms = table[table["task"] == task].groupby(["optimizer", "point", "arm"])["loss"]
    means = of_arms.agg(["mean", "size"]).reset_index()
    means = means[means["size"] == means.groupby("optimizer")["size"].transform("max")]
    losses = means.groupby("optimizer")["mean"].min().to_dict()
    return sorted(optimizers, key=lambda name: losses.get(name, np.inf))


def ranked(trials: pd.DataFrame, order: Sequence[str] = ()) -> pd.DataFrame:
    """Return the rows optimizer by optimizer in an order, by default that of `by_loss`: what is
    made of a table of trials keeps the order of its rows."""
    order = order or by_loss(trials)
    return trials.sort_values("optimizer", kind="stable", key=lambda names: names.map(order.index))


def in_order(
    table: pd.DataFrame, keys: Sequence[str], of: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return the rows sorted by `keys`: of the columns IN_ORDER the value comes first that appears
    first in the table `of`, by default in this one."""
    of = table if of is None else of
    orders = {name: [*of[name].unique()] for name in IN_ORDER if name in keys}

    def rank(column: pd.Series) -> pd.Series:
        return column.map(orders[column.name].index) if column.name in orders else column

    return table.sort_values([*keys], kind="stable", key=rank)


def updates_asked(trials: pd.DataFrame) -> pd.Series:
    """Return how many updates each trial was asked for, whether or not it got there."""
    tokens = trials["tokens_per_parameter"].astype("Float64") * trials["num_parameters"]
    by_size = (tokens / (trials["batch_size"] * trials["seq_len"])).round().clip(lower=1)
    return trials["num_updates_asked"].astype("Float64").fillna(by_size).astype("Int64")


def tokens_asked(trials: pd.DataFrame) -> pd.Series:
    """Return how many tokens each trial was asked for.

    Those of `tokens_per_parameter` are not rounded to whole batches: then settings with batches of
    several sizes have as many.
    """
    tokens = trials["tokens_per_parameter"].astype("Float64") * trials["num_parameters"]
    by_updates = trials["num_updates_asked"] * trials["batch_size"] * trials["seq_len"]
    return tokens.fillna(by_updates.astype("Float64")).round().astype("Int64")


def tasks(trials: pd.DataFrame) -> dict[str, str]:
    """Return for each point its task in words: model, data, tokens and whatever else differs among
    the points of its optimizer and is not TUNED; empty if nothing does."""
    tokens = tokens_asked(trials.drop_duplicates("point").set_index("point"))

    def settings(group: pd.DataFrame) -> pd.DataFrame:
        is_varied = tokens[group.index].nunique(dropna=False) > 1
        return _fixed(group).assign(**{"tokens": tokens} if is_varied else {})

    return by_point(map(settings, labelled(trials)), in_words)


def kinds(trials: pd.DataFrame) -> dict[str, str]:
    """Return for each point its task in words, but for how long it trains."""
    return by_point(map(_fixed, labelled(trials)), in_words)


class Family(NamedTuple):
    """What a point shares with the points that differ from it in their length alone."""

    words: str
    label: str
    """The words for people: those of the keys that differ among points that have a pair."""
    keys: Mapping[str, Any]
    """What the points share, by key of the config; None is null."""


def families(trials: pd.DataFrame) -> dict[str, Family]:
    """Return for each point its family; points of one family have the same words."""
    labels = by_point(map(_without_length, labelled(trials)), in_words)
    tables = map(_without_length, varied(trials).values())
    return by_point(
        tables, lambda row: Family(in_words(row), labels[str(row.name)], _as_config(row))
    )


def families_by_decay(trials: pd.DataFrame) -> dict[str, str]:
    """Return for each point what it shares with points that differ in their length alone, where the
    weight decay of an update falls as the updates grow, so that each run decays as much in all."""
    updates = updates_asked(trials.drop_duplicates("point").set_index("point"))

    def settings(group: pd.DataFrame) -> pd.DataFrame:
        if DECAY not in group:
            return group.head(0)
        decay = group[DECAY].astype(float) * updates[group.index].astype(float)
        in_all = decay.map(lambda total: float(f"{total:.9g}"))
        return _without_length(group.assign(**{DECAY: in_all}))

    return by_point(map(settings, varied(trials).values()), in_words)


def _as_config(row: pd.Series) -> dict[str, Any]:
    return {
        str(key): None if pd.isna(value) else value
        for key, value in row.to_dict().items()
        if key not in NO_KEYS
    }


def _fixed(group: pd.DataFrame) -> pd.DataFrame:
    """Return the settings that are neither tuned nor a length."""
    fixed_keys = [
        key for key in map(str, group) if group_of(key) not in TUNED and key not in LENGTH
    ]
    return group[fixed_keys]


def _without_length(group: pd.DataFrame) -> pd.DataFrame:
    return group[[key for key in group if key not in LENGTH]]
