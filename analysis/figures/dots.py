"""Dots with whiskers: one row per optimizer or value, one dot per arm, on axes that are not cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import pandas as pd

from analysis.figures.data.final_loss import GAP, LOSS
from analysis.figures.data.panels import OF_SEED
from analysis.figures.figure import Chart
from analysis.figures.marks import (
    FAINT,
    GAP_TITLE,
    LOSS_TITLE,
    Look,
    hover,
    legend,
    panels_of,
    rounded,
    titled,
)
from analysis.figures.scales import of_gaps, of_losses
from analysis.figures.style import INK, SOFT, Style, arm_styles
from analysis.statistics.text import diverged_text
from analysis.table.names import signed

CAPTION = (
    "dots: means over n seeds; lines: 95 % intervals; hollow: a single seed; faint: each seed",
    "gap: final loss minus that of sync at the same seed, beside its mean, n and × what diverged",
)
BEST = "each optimizer at the point where sync ends lowest; sorted by the gap of the delay"
LINE, PAD = 13, 9
"""Pixels of the line of an arm, and between rows."""
TITLES = {GAP: GAP_TITLE, LOSS: LOSS_TITLE}
HOVER = ["group", "series", "setting", "n", "mean", "low", "high", "diverged", "pairs"]


def by_optimizer(data: pd.DataFrame) -> list[Chart]:
    """The gaps and the losses of `data.final_loss.data`, each with one row per optimizer."""
    delay = data[(data["quantity"] == GAP) & (data["arm"] == "delay")]
    gaps = delay.groupby("group")["mean"].first()
    known = [name for name in gaps.sort_values().index if pd.notna(gaps[name])]
    return _charts(data, [*known, *sorted({*data["group"]} - {*known})], None)


def by_value(data: pd.DataFrame, title: str) -> list[Chart]:
    """Those of `data.final_loss.by_value`, each with one row per value, in the order of the rows;
    `title` of the values."""
    return _charts(data, [*dict.fromkeys(data.loc[data["quantity"] == LOSS, "group"])], title)


class _Frame(NamedTuple):
    """What the layers of a chart share."""

    x: alt.X
    y: alt.Y
    offset: alt.YOffset
    look: Look


def _charts(data: pd.DataFrame, order: Sequence[str], title: str | None) -> list[Chart]:
    styles = arm_styles(data)
    charts: list[Chart] = []
    for head, rows in panels_of(data):
        present = {*rows["group"]}
        for quantity in (GAP, LOSS):
            shown = rows[rows["quantity"] == quantity]
            if len(shown):
                x = _axis(quantity, data[data["quantity"] == quantity])
                named = _titled(head, quantity)
                groups = [name for name in order if name in present]
                charts.append(_chart(shown, quantity, x, styles, groups, title, named))
    return charts


def _titled(head: alt.TitleParams, quantity: str) -> alt.TitleParams:
    parts = [str(head["text"]), "gap to sync" if quantity == GAP else "final loss"]
    subtitle = head["subtitle"]
    words = ", ".join(filter(None, parts))
    return titled(
        words[:1].upper() + words[1:], "\n".join(subtitle) if isinstance(subtitle, list) else ""
    )


def _axis(quantity: str, rows: pd.DataFrame) -> alt.X:
    values = pd.concat([rows[name].astype(float) for name in ("of_seed", "mean", "low", "high")])
    if quantity == GAP:
        return of_gaps(alt.X("mean:Q"), GAP_TITLE, values, always_symlog=True)
    return of_losses(alt.X("mean:Q"), LOSS_TITLE, values)


def _chart(
    rows: pd.DataFrame,
    quantity: str,
    x: alt.X,
    styles: Mapping[str, Style],
    order: Sequence[str],
    title: str | None,
    head: alt.TitleParams,
) -> Chart:
    names = [name for name in styles if name in {*rows["series"]}]
    axis = alt.Axis(labelLimit=200, domain=False, ticks=False, labelPadding=6)
    frame = _Frame(
        x,
        alt.Y("group:N", title=title, sort=[*order], axis=axis),
        alt.YOffset("series:N", sort=names, scale=alt.Scale(domain=names)),
        legend({name: name for name in names}, styles),
    )
    means = rows.drop_duplicates(["group", "series"])
    words = [_words(row, quantity) for row in means.to_dict("records")]
    shown = rounded(means.assign(words=words), [*HOVER, "words"])
    dots = alt.Chart(shown).encode(y=frame.y, yOffset=frame.offset, color=frame.look.color)
    seeds = rounded(rows.dropna(subset="of_seed"), ["group", "series", "of_seed", *OF_SEED])
    points = alt.Chart(seeds.rename(columns={"of_seed": "mean"})).encode(
        x=frame.x, y=frame.y, yOffset=frame.offset, color=frame.look.color
    )
    ends = alt.X("low:Q", title=x["title"], scale=x["scale"])
    known = dots.transform_filter("isValid(datum.mean)").encode(x=frame.x, tooltip=hover(HOVER))
    lines = alt.Chart(pd.DataFrame({"mean": [0.0]})).mark_rule(color=INK)
    layers = [
        *([lines.encode(x=frame.x)] if quantity == GAP else []),
        points.mark_point(filled=True, size=16, opacity=FAINT).encode(
            tooltip=hover(["series", "mean", *OF_SEED])
        ),
        dots.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=1.6)
        .encode(x=ends, x2=alt.X2("high:Q")),
        known.transform_filter("datum.n > 1")
        .mark_point(filled=True, size=55, opacity=1)
        .encode(shape=frame.look.shape),
        known.transform_filter("datum.n == 1")
        .mark_point(filled=False, size=45, strokeWidth=1.6, opacity=1)
        .encode(shape=frame.look.shape),
        alt.Chart(shown)
        .mark_text(align="left", dx=6, fontSize=9, color=SOFT)
        .encode(y=frame.y, yOffset=frame.offset, x=alt.XValue("width"), text=alt.Text("words:N")),
    ]
    # Rows of gaps and of losses, where sync has a line too, stand beside each other.
    height = len(order) * (LINE * len(styles) + PAD)
    return alt.layer(*layers, title=head, height=height)


def _words(row: Mapping[Any, Any], quantity: str) -> str:
    """`+0.278  n=3  × 1 of 4`."""
    mean = signed(row["mean"]) if quantity == GAP else f"{row['mean']:.3f}"
    lost = f"× {diverged_text(row)}" if row["diverged"] else ""
    return "  ".join(filter(None, [mean if row["n"] else "", f"n={row['n']:g}", lost]))
