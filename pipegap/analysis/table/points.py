"""The key of a point, which is what the trials of a comparison have in common; and its task, which
is what tuning leaves alone.
"""

import hashlib
import json
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, wraps
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from pipegap.analysis.table.schema import TRIAL
from pipegap.trainer.base.errors import FINAL, Status
from pipegap.trainer.config.identity import CHANGES_NO_NUMBER, GROUPS, of_any_path, without_younger

T = TypeVar("T")

ARM_GROUPS = ("pipeline", "correction")
SHARED_GROUPS = tuple(group for group in GROUPS if group not in ARM_GROUPS)
READ_AS = {"num_updates_asked": "num_updates"}
"""Columns that tell points apart → the keys of the config that a reader knows them by."""
CHOICES = ("model", "lr_schedule")
"""Choices that may have the same keys and still be others: their names tell them apart."""
VERSIONS = "versions"
"""The group of columns that hold the versions of packages."""
TORCH = f"{VERSIONS}.torch"
MACHINE = ["device_name", TORCH]
"""What a trial ran on: another kind rounds otherwise. Runner, compiler and number of replicas are
keys of the point, which both trials of a pair share."""


def remembered(function: Callable[..., T]) -> Callable[..., T]:
    """Return a function that makes something of tables at its first call with these objects, and
    returns the same thing later.

    Its arguments are tables alone, which nobody changes once they are made: a column is added to a
    copy. The caller changes the returned thing as little.
    """
    results: dict[tuple[int, ...], T] = {}

    @wraps(function)
    def once(*tables: pd.DataFrame) -> T:
        key = tuple(map(id, tables))  # a table has no hash
        if key not in results:
            results[key] = function(*tables)
            # An id may be given again once its table is gone: its result goes before.
            for table in tables:
                weakref.finalize(table, results.pop, key, None)
        return results[key]

    return once


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves by their dotted names; a list is a leaf."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def group_of(key: str) -> str:
    """Return `optimizer` for `optimizer.lr`, and a key that is in no group itself."""
    return key.partition(".")[0]


def versions(trials: pd.DataFrame) -> dict[str, str]:
    """Return the packages by the columns that hold their versions."""
    names = (name.partition(".") for name in map(str, trials))
    return {f"{group}.{package}": package for group, _, package in names if group == VERSIONS}


def machines(trials: pd.DataFrame) -> pd.Series:
    """Return for each trial the kind of device and the version of torch it ran on, in words."""
    columns = trials.reindex(columns=MACHINE).astype("string").fillna("unknown")  # of older CSVs
    return columns["device_name"] + ", torch " + columns[TORCH]


def num_on_machine(trials: pd.DataFrame) -> pd.Series:
    """Return how many trials of its point and seed ran on the kind of machine of each trial, each
    arm counted once. Of several runs of one trial that counts which has most: then pairs are of one
    kind where they can be."""
    arms = trials["arm"].astype(str)
    for name in map(str, trials):
        if name.endswith(("num_stages", "num_microbatches")):
            arms = arms + " " + trials[name].astype(str)
    keys = [trials["optimizer"], trials["point"], trials["seed"], machines(trials)]
    return arms.groupby(keys, dropna=False).transform("nunique")


def mixed_machines(machines_of: pd.Series, keys: Sequence[pd.Series], what: str) -> str:
    """Return how many of the comparisons that `keys` tell apart, called `what`, have trials of
    several kinds of machine, with an example; empty if none has."""
    by_comparison = machines_of.groupby([*keys], dropna=False).unique()
    mixed = by_comparison[by_comparison.map(len) > 1]
    if mixed.empty:
        return ""
    example = " and ".join(sorted(mixed.iloc[0]))
    counts = f"{len(mixed)} of {len(by_comparison)} {what}"
    return f"{counts} mix devices or versions of torch ({example}, for example)"


SHARDS = "data.shards"
"""The key of the folder for tokens of one's own text, a place on one machine: no name shows it."""
BESIDE = "beside"
"""Column of a report: whether another trial of the store ran beside a trial (`pairs.overhead`)."""


@cache
def is_of_point(key: str) -> bool:
    """Return whether a config key belongs to the point.

    Keys of the arm, the seed and paths do not, nor does the checkpoint that a trial resumed from:
    such a trial goes on exactly as before, on another number of stages.
    """
    # `diagnostics` says what a trial measures beside its loss, and changes no number of training.
    return (
        group_of(key) not in (*ARM_GROUPS, "diagnostics")
        and key not in ("seed", "resume_from", BESIDE)
        and key not in CHANGES_NO_NUMBER
    )


def point_columns(flat_config: Mapping[str, Any], data_hash: str | None) -> dict[str, str]:
    """Return `settings_key`, a digest of the settings, and `point`: the digest, a hyphen, and the
    start of the data's hash (0 where it is not known)."""
    return _point(without_younger(flat_config), data_hash)


def loop_point_columns(flat_config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    """Return the same of a recorded loop, whose choices are their names: every word counts, and
    None is as if there was no word."""
    words = {key: value for key, value in flat_config.items() if not key.endswith("._target_")}
    names_of_groups = {group: names[group] for group in SHARED_GROUPS}
    return _point({k: v for k, v in words.items() if v is not None} | names_of_groups, None)


def _point(config: Mapping[str, Any], data_hash: str | None) -> dict[str, str]:
    shared = {key: value for key, value in config.items() if is_of_point(key)}
    # Stores and reports have these keys: what is hashed must not change.
    digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:12]
    return {"settings_key": digest, "point": f"{digest}-{(data_hash or '0')[:8]}"}


def with_one_name(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the table with one name per point for each choice that the arms of a pair share.

    Two names of the same values are the same setting: the name of most trials of the point counts,
    the first by alphabet if several have as many. Else such trials could not be compared.
    """
    names = {group: trials["point"].map(_usual(trials, group)) for group in SHARED_GROUPS}
    return trials.assign(**names)


def _usual(trials: pd.DataFrame, group: str) -> pd.Series:
    """Return for each point the name that most of its trials have for a choice."""
    # groupby sorts by name, and a stable sort keeps that order among equal counts.
    counts = trials.groupby(["point", group]).size().sort_values(ascending=False, kind="stable")
    names = counts.index.to_frame(index=False).drop_duplicates("point")
    return names.set_index("point")[group]


@remembered
def varied(trials: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return for each optimizer a table of its points (index) and the keys that differ (columns).

    No two rows are the same. A key that the name of a choice tells already is left out.
    """
    return {
        str(optimizer): _telling_apart(points)
        for optimizer, points in _points(trials).groupby("optimizer", sort=False)
    }


@remembered
def labelled(trials: pd.DataFrame) -> list[pd.DataFrame]:
    """Return tables of points like those of `varied`, as people read them; no two rows are alike.

    Points that have a pair show the keys that differ among these. Points without a pair, such as
    that of a trial by which somebody tried something, show all keys of `varied` in a table beside.
    Data is called by its name, or by the last part of its path.
    """
    done = trials.loc[trials["status"].isin(FINAL), ["point", "seed", "arm"]]
    is_sync = done["arm"] == "sync"
    pairs = done[is_sync].merge(done[~is_sync], on=["point", "seed"])
    tables = []
    for _, points in _points(trials).groupby("optimizer", sort=False):
        paired = points[points.index.isin(pairs["point"])]
        other_points = _telling_apart(points).drop(index=paired.index)
        tables += [_called(table, points) for table in (_telling_apart(paired), other_points)]
    return tables


def _points(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one trial of each point, by the point.

    An unfinished trial has not recorded its data: its point is not known in full.
    """
    done = trials[trials["status"] != Status.UNFINISHED]
    return done.drop_duplicates("point").set_index("point")


def _telling_apart(points: pd.DataFrame) -> pd.DataFrame:
    """Return the columns that tell the points of one optimizer apart, called as their keys.

    If there are several models, their names are a column, and of their settings only those that
    differ between points of one name. If two points have the same keys, as those of a class that
    moved to another file, `point` is a column.
    """
    in_config = [key for key in map(str, points) if is_of_point(key) and key not in TRIAL]
    keys = [key for key in in_config if group_of(key) != VERSIONS and key != SHARDS]
    data = _telling_data(points)
    differing = [key for key in (*keys, *READ_AS) if _differs(points[key])]
    differing += [data] if data else []
    differing += [choice for choice in CHOICES if _differs(points[choice])]
    by_name = {name: points.groupby(name) for name in (*CHOICES, "data") if name in differing}
    # Of a choice's own keys only those that its name does not tell: they differ under one name.
    telling_keys = [
        key
        for key in differing
        if (name := group_of(key)) == key
        or name not in by_name
        or any(_differs(same[key]) for _, same in by_name[name])
    ]
    table = points[telling_keys].rename(columns=READ_AS)
    rows = [*map(tuple, table.apply(texts).to_numpy())]
    return table if len({*rows}) == len(rows) else table.assign(point=table.index)


def _telling_data(points: pd.DataFrame) -> str | None:
    """Return the first column that tells the data of points apart; None if they have the same data.

    The data of a recorded loop is known by its name alone.
    """
    data = points["data_hash"].fillna(points["data"])
    if not _differs(data):
        return None
    columns = ("data", "data.path", "data_hash")
    return next(
        key for key in columns if data.groupby(points[key], dropna=False).nunique().max() == 1
    )


def _called(table: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    """Return the table with data as people call it, where that tells as much."""
    names_of_data = {"data": data_names(points), "data.path": _last_parts(points)}
    columns = {
        key: names[table.index]
        for key, names in names_of_data.items()
        if key in table and names[table.index].nunique() == table[key].nunique()
    }
    return table.assign(**columns)


def data_names(trials: pd.DataFrame) -> pd.Series:
    """Return what people call the data of each trial: the last part of its path if it is a choice
    that has no path of its own, such as `text`, else the name of the choice."""
    return trials["data"].mask(trials["data"].isin(of_any_path("data")), _last_parts(trials))


def _last_parts(trials: pd.DataFrame) -> pd.Series:
    return trials["data.path"].astype("string").str.rstrip("/").str.rpartition("/")[2]


def _differs(values: pd.Series) -> bool:
    """Return whether there are several values. What is missing is one value: None and NaN stand
    beside each other where several tables were put together."""
    if values.dtype == object:  # pandas takes 1 for True
        values = texts(values)
    return int(values.nunique()) + int(values.isna().any()) > 1


def settings(trials: pd.DataFrame) -> dict[str, str]:
    """Return for each point, as key=value, the keys that differ among its optimizer's points: no
    two points of an optimizer have the same text (`labelled`)."""
    return by_point(labelled(trials), in_words)


def by_point(tables: Iterable[pd.DataFrame], of_row: Callable[[pd.Series], T]) -> dict[str, T]:
    """Return `of_row` of each row of tables as those of `varied`, by its point."""
    return {str(point): of_row(row) for table in tables for point, row in table.iterrows()}


def in_words(keys: pd.Series | Mapping[str, Any]) -> str:
    """Return `optimizer.lr=0.002, batch_size=16` for a row of `varied`, for example.

    Different values give different texts, except 1 and 1.0. A missing value is written None,
    however the column holds it.
    """
    return ", ".join(f"{key}={_text(value)}" for key, value in keys.items())


def texts(values: pd.Series) -> pd.Series:
    """Return the values as `in_words` writes them."""
    return values.astype(object).map(_text)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value if _is_plain(value) else json.dumps(value, ensure_ascii=False)
    return str(None if pd.api.types.is_scalar(value) and pd.isna(value) else value)


def _is_plain(text: str) -> bool:
    """Return whether a text is no other value's, and ends where it seems to end."""
    with suppress(ValueError):
        float(text)
        return False
    with suppress(ValueError):
        return isinstance(json.loads(text), list)  # the list itself, as a column holds it
    is_whole = text.isprintable() and text.strip() == text != ""
    return is_whole and text not in ("None", "True", "False") and not {",", '"'} & {*text}


# The task of a point: the settings that tuning leaves alone, and how long it trains; and the
# order of optimizers by their losses at one task.

TUNED = (
    *("optimizer", "lr_schedule", "batch_size", "clip_norm", "clip_scope"),
    *("eval_every", "eval_tokens"),
)
"""Groups and keys that people tune: settings of one task differ in these alone."""
LENGTH = ("num_updates", "tokens_per_parameter")
"""The keys that say how long a trial trains."""
DECAY = "optimizer.weight_decay"

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

    def family(row: pd.Series) -> Family:
        keys = {
            str(key): None if pd.isna(value) else value
            for key, value in row.to_dict().items()
            if key not in ("data_hash", "point")  # they tell points apart, and are in no config
        }
        return Family(in_words(row), labels[str(row.name)], keys)

    return by_point(tables, family)


def families_by_decay(trials: pd.DataFrame) -> dict[str, str]:
    """Return for each point what it shares with points that differ in their length alone, where the
    weight decay of an update falls as the updates grow, so that each run decays as much in all."""
    updates = updates_asked(trials.drop_duplicates("point").set_index("point"))

    def settings(group: pd.DataFrame) -> pd.DataFrame:
        if DECAY not in group:
            return group.head(0)
        decay = group[DECAY].astype(float) * updates[group.index].astype(float)
        in_all = decay.map(lambda total: float(f"{total:.9g}"))  # equal but for rounding
        return _without_length(group.assign(**{DECAY: in_all}))

    return by_point(map(settings, varied(trials).values()), in_words)


def _fixed(group: pd.DataFrame) -> pd.DataFrame:
    """Return the settings that are neither tuned nor a length."""
    return group[[key for key in group if group_of(str(key)) not in TUNED and key not in LENGTH]]


def _without_length(group: pd.DataFrame) -> pd.DataFrame:
    """Return the settings but the length, and what equals it at every point, as an option does
    whose value is `${num_updates}`."""
    lengths = [key for key in LENGTH if key in group]
    return group[[key for key in group if not any(group[key].eq(group[k]).all() for k in lengths)]]
