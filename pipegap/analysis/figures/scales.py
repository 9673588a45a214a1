"""Axes: scales that hold every value and say in words where they are not linear."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import altair as alt
import numpy as np
import pandas as pd

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
MAX_TICKS = 8
RATIOS = (0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 2, 3, 5, 10, 30, 100, 1000)
"""Ticks of an axis of ratios."""
NUMBER = (
    "abs(datum.value) < 10000 ? format(datum.value, '.4~g') "
    ": replace(format(datum.value, '.2~s'), 'G', 'B')"
)
"""Ticks as people write numbers: 0.004, 200k, 1.6M, 6B."""
SIDES = 14  # pixels left of the smallest number and right of the largest

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
    return alt.Y(
        f"{column}:Q", title=title, scale=scale, axis=alt.Axis(values=decades, labelExpr=NUMBER)
    )


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
    return sizes[sizes != 0].abs()


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
    if num_decades <= 3:
        ticks += [3 * tick for tick in ticks]
    if most < 4 * symlog.constant:
        ticks += [0.3 * symlog.constant]
    ticks_kept = [float(f"{tick:.1g}") for tick in ticks]
    return sorted(
        tick for tick in {0.0, *ticks_kept, *(-tick for tick in ticks_kept)} if low <= tick <= high
    )


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
    scale = alt.Scale(
        domain=[distinct[0], distinct[-1]],
        padding=SIDES,
        nice=False,
        **_kind([value for value in distinct if value > 0], whole=distinct),
    )
    ticks = distinct if len(distinct) <= MAX_TICKS else alt.Undefined
    axis = alt.Axis(values=ticks, labelExpr=NUMBER)
    return alt.X(f"{column}:Q", title=title, scale=scale, axis=axis)


def _kind(positive: Sequence[float], whole: Sequence[float]) -> dict[str, Any]:
    """Return the kind of scale: a log axis has no place for 0, a symlog axis is linear there."""
    if not positive or positive[-1] <= LOG_FROM * positive[0]:
        return {"type": "linear", "zero": False}
    if len(positive) == len(whole):
        return {"type": "log"}
    return {"type": "symlog", "constant": positive[0]}


def _around(places: pd.Series, above: float) -> list[float]:
    """Return the ends of an axis that holds places, and beyond them shares of their span."""
    low, high = _ends(places)
    return [low - MARGIN * (high - low), high + above * (high - low)]


def _ends(values: pd.Series) -> tuple[float, float]:
    """Return the least and the largest value; half a unit to each side if they are equal."""
    numbers = values.astype(float).dropna()
    low, high = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 1.0)
    return (low, high) if low < high else (low - 0.5, high + 0.5)
