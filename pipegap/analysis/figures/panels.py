"""What figures share: the columns of their tables, their panels, and their axes."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import altair as alt
import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from pipegap.analysis.statistics.pairs import SAME_ARM, VARIANT, mean_interval, pairs, results
from pipegap.analysis.table import names
from pipegap.analysis.table.points import group_of, in_order, remembered, varied
from pipegap.trainer.base.errors import Status

# What the tables of figures share: columns, names of panels, means, paired seeds, and points: the
# best ones, and those that differ in given keys alone.

PANEL = ["panel", "subtitle"]
"""The title of a panel, and the lines below it; both together tell panels apart."""
MEAN = ["n", "mean", "low", "high", "diverged", "pairs"]
"""A mean with its 95 % interval; of all `pairs`, `diverged` are not among its n."""
SERIES = ["series", "arm", *VARIANT]
"""The label of a line or row, and the arm, stages and microbatches that it stands for."""
OF_SEED = ["seed", "trial_id", "status"]
"""What tells one point of a figure from another."""
OF_GAPS = [*PANEL, "optimizer", "key", "value", *SERIES, "gap", *OF_SEED, *MEAN]
"""A figure of gaps against `value` of `key`: one row per seed; a reference line has no value."""
IN_PANEL = ["series", "value", "seed"]
"""Order of the rows of a panel of OF_GAPS."""
COMPARABLE = ["optimizer", "num_parameters", "data_hash"]
"""Losses of different models or data are never in one panel."""


def in_lines(parts: Iterable[str]) -> str:
    """Return the parts that are not empty, in lines."""
    return "\n".join(part for part in parts if part)


def with_variant(trials: pd.DataFrame, labels: pd.Series) -> list[str]:
    """Return `labels`, with stages and microbatches where a point has several of one label."""
    variants = trials.groupby(["point", labels.rename("label")])[VARIANT].nunique().max(axis=1)
    rows = trials.assign(label=labels)[["point", "label", *VARIANT]].itertuples(index=False)
    return [
        label if variants[point, label] == 1 else f"{label} (p = {p}, m = {m})"
        for point, label, p, m in rows
    ]


def mean_of(values: pd.Series) -> dict[str, float]:
    """Return MEAN of `values`; the values of diverged trials are missing, and counted."""
    finite_values = values.dropna().to_numpy(dtype=float)
    low, high = mean_interval(finite_values)
    mean = finite_values.mean() if len(finite_values) else np.nan
    counts = len(finite_values), mean, low, high, len(values) - len(finite_values), len(values)
    return dict(zip(MEAN, counts, strict=True))


def with_means(table: pd.DataFrame, column: str, keys: Sequence[str]) -> pd.DataFrame:
    """Return `table` with MEAN of its `column` over the rows that have equal `keys`."""
    if table.empty:
        return table.reindex(columns=[*dict.fromkeys([*table, *MEAN])])
    means = [
        {**dict(zip(keys, key, strict=True)), **mean_of(values)}
        for key, values in table.groupby([*keys], sort=False)[column]
    ]
    return table.merge(pd.DataFrame(means, columns=[*keys, *MEAN]), on=[*keys])


@remembered
def paired_seeds(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per trial whose sync partner completed: the columns of `pairs` and MEAN.

    `gap` is NaN if the trial diverged. `series` is the name of the arm, as `with_variant` writes
    it. MEAN comes from the arm's row of `gaps`.
    """
    if trials.empty:
        return pd.DataFrame(columns=list(dict.fromkeys([*OF_GAPS, *SAME_ARM, "base_arm"])))
    paired = pairs(trials)
    paired = paired[paired["status_sync"] == Status.COMPLETED].reset_index(drop=True)
    paired["series"] = with_variant(paired, paired["arm"].map(names.arms(trials)))
    means = gaps.rename(columns={"gap": "mean"})[[*SAME_ARM, *MEAN]]
    return paired.merge(means, on=SAME_ARM, how="left")


@remembered
def best_points(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return the trials of the best point of each panel, with PANEL and `series`.

    The best point has the lowest mean sync loss among the points that have a pair, or among all
    points if none has a pair. The subtitle names the point where there were several.
    """
    done = results(trials)
    done["has_pair"] = done["point"].isin(gaps.loc[gaps["pairs"] > 0, "point"])
    best_rows = [  # `dropna=False`: the data of a recorded loop has no hash
        _best(group)
        for _, group in in_order(done, COMPARABLE).groupby(COMPARABLE, dropna=False, sort=False)
    ]
    if not best_rows:
        return done.assign(panel="", subtitle="", series="")
    points = pd.concat(best_rows)
    points["panel"] = points["optimizer"].map(names.optimizer)
    if points["num_parameters"].nunique() > 1:
        sizes = points["num_parameters"].map(names.parameters)
        points["panel"] += ", " + sizes + " parameters"
    settings = names.settings(trials)
    points["subtitle"] = [
        f"{settings[point]}: best sync of {num_points}" if num_points > 1 else ""
        for point, num_points in points[["point", "num_points"]].itertuples(index=False)
    ]
    points["series"] = with_variant(points, points["arm"].map(names.arms(trials)))
    return points


def _best(group: pd.DataFrame) -> pd.DataFrame:
    sync = group.loc[group["arm"] == "sync"].groupby("point")["final_val_loss"].mean()
    ranked = group.drop_duplicates("point").set_index("point")
    ranked = ranked.assign(loss_sync=sync).sort_values(
        ["has_pair", "loss_sync"], ascending=[False, True], kind="stable"
    )
    return group[group["point"] == ranked.index[0]].assign(num_points=len(ranked))


def along(trials: pd.DataFrame, keys: Sequence[str], part_of: str = "") -> pd.DataFrame:
    """Return the points with a result that differ in `keys` alone, and in keys that follow.

    `keys` are columns of `trials`. The points are the index; the columns are `optimizer`, PANEL
    and the keys. The subtitle names each key that follows, as a tuned learning rate does, unless
    it is in the group `part_of` of the config. The table is empty if one of the keys has the same
    value everywhere in a panel.
    """
    done = results(trials).drop_duplicates("point").set_index("point")
    none = done[:0].reindex(columns=["optimizer", *PANEL, *keys])
    if not {*keys} <= {*done}:
        return none
    panels = []
    for optimizer, points in varied(trials).items():
        table = points[points.index.isin(done.index)]
        table = table.assign(**{key: done.loc[table.index, key] for key in keys})
        for subtitle, group in groups(table, keys, part_of):
            if all(group[key].nunique(dropna=False) > 1 for key in keys):
                words = {"panel": names.optimizer(optimizer), "subtitle": subtitle}
                panels.append(group[[*keys]].assign(optimizer=optimizer, **words))
    return pd.concat(panels) if panels else none


def results_along(trials: pd.DataFrame, keys: Sequence[str], part_of: str = "") -> pd.DataFrame:
    """Return the trials with a result at the points of `along`, with PANEL and `series`.

    The rows are sorted by panel and `keys`.
    """
    points = along(trials, keys, part_of)[[*PANEL, *keys]]
    points = in_order(points, [*PANEL, *keys])
    done = results(trials).drop(columns=[*keys], errors="ignore")
    rows = points.merge(done, left_index=True, right_on="point").reset_index(drop=True)
    return rows.assign(series=with_variant(rows, rows["arm"].map(names.arms(trials))))


def panels_of_keys(points: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the points (the index) that differ in one number alone, with `subtitle`, `key` and
    `value`, for each number."""
    for key in distinct(points):
        if not is_numeric_dtype(points[key]) or is_bool_dtype(points[key]):
            continue
        for subtitle, group in groups(points, [key]):
            values = group[key].dropna().astype(float)
            if values.nunique() > 1:
                lack = f"without {names.key(key)}: not shown" if len(values) < len(group) else ""
                title = in_lines([subtitle, lack])
                yield pd.DataFrame({"subtitle": title, "key": key, "value": values})


def groups(
    points: pd.DataFrame, keys: Sequence[str], part_of: str = ""
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield subtitle and points of each panel: those that agree in all keys but `keys` and those
    that follow from them."""
    other_keys = [key for key in distinct(points, keys) if key not in keys]
    at_each = points.groupby([*keys], dropna=False)
    # A key follows if it has one value at each value of `keys`, as a tuned learning rate may.
    follow = [key for key in other_keys if (at_each[key].nunique(dropna=False) == 1).all()]
    fixed = [key for key in other_keys if key not in follow]
    followers = [
        f"with {names.key(key)} moving along"
        for key in follow
        if not part_of or group_of(key) != part_of
    ]
    for _, group in points.groupby(fixed, dropna=False) if fixed else [((), points)]:
        yield in_lines([names.in_words(group[fixed].iloc[0]), *followers]), group


def distinct(points: pd.DataFrame, first: Sequence[str] = ()) -> list[str]:
    """Return the keys that differ, and of keys that distinguish the same points the first one."""
    first_rows: dict[str, list[int]] = {}
    for key in [*first, *(key for key in map(str, points) if key not in first)]:
        # Two keys tell the same points apart if they number them alike, whatever their values.
        codes = points[key].factorize(use_na_sentinel=False)[0].tolist()
        if codes not in first_rows.values() and len(set(codes)) > 1:
            first_rows[key] = codes
    return [*first_rows]


# The panels of a figure: of many series each has one of its own, on the axes of all.

MOST_CURVES = 5
"""Series in one panel."""
BESIDE = ("sync", "delay")
"""Arms that each of several panels shows: the others are compared with them."""


class Panel(NamedTuple):
    """`rows` are those of the panel, `same_axes` those of all panels that have its axes."""

    title: alt.TitleParams
    rows: pd.DataFrame
    same_axes: pd.DataFrame

    def of(self, rows: pd.DataFrame, more: str = "") -> "Panel":
        """Return the panel of these rows, with `more` words in its name."""
        title = alt.TitleParams(f"{self.title['text']}{more}", subtitle=self.title["subtitle"])
        return self._replace(title=title, rows=rows)


def panels_of(data: pd.DataFrame, order: Iterable[str] = ()) -> Iterator[Panel]:
    """Yield the panels, in the order of the rows.

    A panel with more than MOST_CURVES of the series in `order` becomes several. Each of these has
    one series beside those of the arms BESIDE. Series of several `size` are divided by it first.
    """
    for (panel, subtitle), rows in data.groupby(PANEL, sort=False):
        for name, part in _parted(rows, [*order]):
            first, *subtitles = filter(None, [name, str(panel)])
            yield Panel(titled(first, in_lines([*subtitles, str(subtitle)])), part, rows)


def _parted(rows: pd.DataFrame, order: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of each panel, and what tells it from the others."""
    if not order or rows["series"].nunique() <= MOST_CURVES:
        yield "", rows
    elif "size" in rows and rows["size"].nunique() > 1:
        for _, of_size in rows.groupby("size"):
            first, *other_words = (name.split() for name in of_size["series"].unique())
            # The words that all series of this size have: `135M` of `135M delay`, `135M sync`.
            name = " ".join(word for word in first if all(word in words for words in other_words))
            for more, part in _parted(of_size, order):
                yield more or name, part
    else:
        common = {*rows["series"]} - {*rows.loc[~rows["arm"].isin(BESIDE), "series"]}
        if len(common) >= MOST_CURVES:  # they alone fill a panel, as optimizers of one arm do
            common = set()
        for name in (name for name in order if name not in common):
            if (is_series := rows["series"] == name).any():
                yield name, rows[is_series | rows["series"].isin(common)]


def titled(name: str, *subtitles: str) -> alt.TitleParams:
    """Return the title of a panel: its name, and below it in small letters the `subtitles`."""
    lines = [line for subtitle in subtitles for line in subtitle.splitlines()]
    return alt.TitleParams(name, subtitle=lines or alt.Undefined)


# Axes: scales that hold every value and say in words where they are not linear.

GAP_TITLE = "gap to sync (nats per token)"
LOSS_TITLE = "final validation loss (nats per token)"
MARGIN = 0.05
"""Share of the axis that is left free beyond the values."""
LOG_FROM = 7
"""Swept numbers whose ratio of largest to smallest is above this are drawn on a log axis."""
SYMMETRIC_LOG_FROM = 8
"""Gaps whose ratio of largest to median is above this are drawn on a symlog axis: small gaps would
be a flat line on a linear one."""
DECADES = 2
"""Means of rows that span more decades are drawn on a symlog axis."""
RATIOS = (0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 2, 3, 5, 10, 30, 100, 1000)
"""Ticks of an axis of ratios."""
NUMBER = (
    "abs(datum.value) < 10000 ? format(datum.value, '.4~g') "
    ": replace(format(datum.value, '.2~s'), 'G', 'B')"
)
"""Ticks as people write numbers: 0.004, 200k, 1.6M, 6B."""

Channel = TypeVar("Channel", alt.X, alt.Y)


def column_of(channel: alt.X | alt.Y) -> str:
    """Return the column of the data that a channel shows."""
    return str(channel["shorthand"]).partition(":")[0]


class Symlog(NamedTuple):
    """Linear around 0, then logarithmic, as d3's scaleSymlog is: `constant` is where it turns."""

    constant: float

    def forward(self, value: float) -> float:
        """Place on the axis."""
        return float(np.sign(value) * np.log1p(abs(value) / self.constant))

    def inverse(self, place: float) -> float:
        """The value there."""
        return float(np.sign(place) * np.expm1(abs(place)) * self.constant)


def linear(values: pd.Series, *, above: float = MARGIN) -> alt.Scale:
    """Return a scale that holds `values`, and beyond them shares of their span."""
    return alt.Scale(domain=_around(values, above), nice=False, zero=False)


def loss_axis(channel: Channel, values: pd.Series, above: float = MARGIN) -> Channel:
    """Return the axis of losses, from below the least to above the largest.

    The axis is logarithmic, and says so, if most losses would lie on each other at its end.
    """
    losses = values.astype(float).dropna()
    least = float(losses.min()) if len(losses) else 0.0
    above_least = (losses - least).to_numpy()
    # Three quarters of the losses would share an eighth of a linear axis.
    is_far = len(losses) > 0 and above_least.max() > SYMMETRIC_LOG_FROM * max(
        float(np.quantile(above_least, 0.75)), 1e-12
    )
    if not is_far or least <= 0:
        axis, scale = alt.Axis(tickCount=5), linear(losses, above=above)
        return type(channel)(channel["shorthand"], title=LOSS_TITLE, scale=scale, axis=axis)
    axis, scale = alt.Axis(labelExpr=NUMBER, tickCount=5), _logarithmic(losses, above)
    words = [LOSS_TITLE, "logarithmic"]
    return type(channel)(channel["shorthand"], title=words, scale=scale, axis=axis)


def log_axis(column: str, title: str, values: pd.Series) -> alt.Y:
    """Return a log axis with one tick per decade."""
    powers = values.astype(float).map(np.log10)
    domain = [float(10**place) for place in _around(powers, MARGIN)]
    low, high = _ends(powers)
    decades = [10.0**power for power in range(int(np.ceil(low)), int(np.floor(high)) + 1)]
    scale = alt.Scale(type="log", domain=domain, nice=False)
    axis = alt.Axis(values=decades, labelExpr=NUMBER)
    return alt.Y(f"{column}:Q", title=title, scale=scale, axis=axis)


def _logarithmic(values: pd.Series, above: float = MARGIN) -> alt.Scale:
    """Return a log scale that holds `values`, and beyond them shares of their span."""
    domain = [float(np.exp(place)) for place in _around(values.map(np.log), above)]
    return alt.Scale(type="log", domain=domain, nice=False)


def far_apart(values: pd.Series) -> bool:
    """Return whether most of the numbers are small beside the largest."""
    sizes = _sizes(values)
    return bool(sizes.max() > SYMMETRIC_LOG_FROM * sizes.median())


def over_decades(means: pd.Series) -> bool:
    """Return whether the sizes of the means span more than DECADES.

    The smallest quarter of them does not count: the size of a mean near 0 is noise.
    """
    sizes = _sizes(means)
    return bool(sizes.max() > 10**DECADES * sizes.quantile(0.25))


def _sizes(values: pd.Series) -> pd.Series:
    sizes = values.astype(float).dropna()
    return sizes[sizes != 0].abs()  # 0 has no decade


def gap_axis(
    channel: Channel, values: pd.Series, above: float = MARGIN, *, symlog: bool
) -> Channel:
    """Return the axis of gaps, which holds 0: linear, or `symlog`, which it says."""
    gaps = pd.concat([values.astype(float).dropna(), pd.Series([0.0])])
    sizes = _sizes(gaps)
    name = channel["shorthand"]
    if sizes.empty or not symlog:
        axis = alt.Axis(tickCount=5)
        return type(channel)(name, title=GAP_TITLE, scale=linear(gaps, above=above), axis=axis)
    # It turns at the decade below the median: small numbers can be told apart.
    turned = Symlog(float(10 ** np.floor(np.log10(sizes.median()))))
    domain = [turned.inverse(place) for place in _around(gaps.map(turned.forward), above)]
    scale = alt.Scale(type="symlog", constant=turned.constant, domain=domain, nice=False)
    axis = alt.Axis(values=_ticks(turned, *domain), labelExpr=NUMBER)
    words = [GAP_TITLE, f"linear near 0, logarithmic beyond ±{turned.constant:g}"]
    return type(channel)(name, title=words, scale=scale, axis=axis)


def _ticks(symlog: Symlog, low: float, high: float) -> list[float]:
    """Return 0, and 1 and 3 times each decade from where the axis turns."""
    most = max(abs(low), abs(high))
    num_decades = int(np.ceil(np.log10(max(most / symlog.constant, 1)))) + 1
    ticks = [symlog.constant * 10.0**power for power in range(num_decades)]
    if num_decades <= 3:  # room for a tick within each decade
        ticks += [3 * tick for tick in ticks]
    if most < 4 * symlog.constant:
        ticks += [0.3 * symlog.constant]
    ticks = [float(f"{tick:.1g}") for tick in ticks]  # 0.3, not 0.30000000000000004
    return sorted(tick for tick in {0.0, *ticks, *(-t for t in ticks)} if low <= tick <= high)


def ratio_axis(channel: Channel, title: str, values: pd.DataFrame) -> Channel:
    """Return `channel` on a log axis that holds 1 and all `values`, with ticks at round ratios."""
    ratios = pd.concat([*(values[name].astype(float) for name in values), pd.Series([1.0])])
    scale = _logarithmic(ratios)
    low, high = scale["domain"]
    ticks = [tick for tick in RATIOS if low <= tick <= high]
    axis = alt.Axis(values=ticks, labelExpr=NUMBER)
    return type(channel)(channel["shorthand"], title=title, scale=scale, axis=axis)


def token_axis(values: pd.Series) -> alt.X:
    """Return the axis of tokens trained on, from 0 to the last."""
    last = float(values.max()) if len(values) else 1.0
    scale = alt.Scale(domain=[0, last], nice=False)
    axis = alt.Axis(tickCount=5, labelExpr=NUMBER)
    return alt.X("tokens:Q", title="tokens", scale=scale, axis=axis)


def number_axis(column: str, title: str, values: pd.Series) -> alt.X:
    """Return the axis of swept numbers, with ticks at them where there is room."""
    distinct = sorted(set(values.astype(float)))
    positive = [value for value in distinct if value > 0]
    kind: dict[str, Any] = {"type": "log"}
    if not positive or positive[-1] <= LOG_FROM * positive[0]:
        kind = {"type": "linear", "zero": False}
    elif len(positive) < len(distinct):  # a log axis has no place for 0, where symlog is linear
        kind = {"type": "symlog", "constant": positive[0]}
    # `padding`: pixels left of the smallest number and right of the largest.
    domain = [distinct[0], distinct[-1]]
    scale = alt.Scale(domain=domain, padding=14, nice=False, **kind)
    axis = alt.Axis(values=distinct if len(distinct) <= 8 else alt.Undefined, labelExpr=NUMBER)
    return alt.X(f"{column}:Q", title=title, scale=scale, axis=axis)


def _around(places: pd.Series, above: float) -> list[float]:
    """Return the ends of an axis that holds places, and beyond them shares of their span."""
    low, high = _ends(places)
    return [low - MARGIN * (high - low), high + above * (high - low)]


def _ends(values: pd.Series) -> tuple[float, float]:
    """Return the least and the largest value; half a unit to each side if they are equal."""
    numbers = values.astype(float).dropna()
    low, high = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 1.0)
    return (low, high) if low < high else (low - 0.5, high + 0.5)
