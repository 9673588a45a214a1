"""Final losses side by side: one bar per arm, every seed, and the mean gap with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import altair as alt
import pandas as pd

from analysis.figures.data.final_loss import GAP
from analysis.figures.data.panels import OF_SEED, PANEL
from analysis.figures.draw.marks import legend, panels_of, rounded
from analysis.figures.draw.style import Style, arm_styles
from analysis.figures.figure import Chart
from analysis.statistics.text import diverged_text
from trainer.base.status import Status

CAPTION = (
    "bars: means; points: each seed; above: mean gap to sync, its 95 % interval and n",
    "the axis starts above 0; ↑: beyond it there are seeds of the bar, whose mean is written",
)
CRUSHED = 4.0
"""A bar is cut where its distance from the least loss is that many times the third quartile of
these distances."""
MARGIN = 0.08
"""Share of the axis below the least loss."""
HEIGHT, LINE = 150, 10  # pixels of the highest bar, and of a line of the words above it
MIN_WIDTH, BAND = 200, 44  # pixels that the words above a bar take
HOVER = ["series:N", "mean:Q", *(f"{name}:Q" for name in GAP)]


def charts(data: pd.DataFrame, key: str = "series") -> list[Chart]:
    """One chart per panel of rows of `data.final_loss`: one per trial.

    Bars of one value of the column `key` stand together, in the order of the rows. Trials that
    diverged have no loss: they are counted in words.
    """
    data = data.assign(group=data[key])
    words = [_of_group(rows) for _, rows in data.groupby([*PANEL, "group"])]
    floor, top = _ends(data)
    span = (top - floor) or 1.0
    room = LINE * (max(map(len, words)) + 2)
    domain = [floor - MARGIN * span, top + span * room / HEIGHT]
    scale = alt.Scale(domain=domain, nice=False, zero=False)
    y = alt.Y("final_val_loss:Q", title="final validation loss (nats per token)", scale=scale)
    frame = _Frame(key, y, domain[0], top, HEIGHT + room, arm_styles(data))
    return [_panel(rows, frame, title) for title, rows in panels_of(data)]


class _Frame(NamedTuple):
    """What the panels share: bars stand on `bottom` and are cut at `top`."""

    key: str
    y: alt.Y
    bottom: float
    top: float
    height: int
    styles: Mapping[str, Style]


def _ends(data: pd.DataFrame) -> tuple[float, float]:
    """The least loss, and the largest one of a bar that is not cut."""
    tops = data.groupby([*PANEL, "group", "series"])["final_val_loss"].max().dropna()
    if tops.empty:
        return 0.0, 1.0
    floor = float(data["final_val_loss"].min())
    limit = floor + CRUSHED * (float(tops.quantile(0.75)) - floor)
    return floor, float(tops[tops <= max(limit, tops.min())].max())


def _panel(rows: pd.DataFrame, frame: _Frame, title: alt.TitleParams) -> Chart:
    is_grouped = frame.key != "series"
    order = list(dict.fromkeys(rows["group"])) if is_grouped else [*frame.styles]
    look = legend({name: name for name in frame.styles}, frame.styles, symbol="square").color
    color = look if is_grouped else alt.Color("series:N", scale=look["scale"], legend=None)
    x = alt.X("group:N", title=frame.key if is_grouped else None, sort=order, axis=_names(order))
    offset = alt.XOffset("series:N", sort=[*frame.styles]) if is_grouped else alt.Undefined
    bars = _bars(rows, frame.top)
    drawn = alt.Chart(rounded(bars.dropna(subset="final_val_loss"), [*bars])).encode(
        x=x, y=frame.y, color=color, xOffset=offset
    )
    seeds = rounded(
        rows[rows["final_val_loss"] <= frame.top], ["group", "series", "final_val_loss", *OF_SEED]
    )
    dots = alt.Chart(seeds).mark_point(filled=True, size=16, opacity=0.75)
    return alt.layer(
        drawn.mark_bar(opacity=0.3).encode(y2=alt.datum(frame.bottom), tooltip=HOVER),
        dots.encode(
            x=x,
            y=frame.y,
            color=color,
            tooltip=["final_val_loss:Q", "series", *OF_SEED],
            xOffset=offset,
        ),
        drawn.transform_filter("datum.cut")
        .mark_text(angle=270, align="right", dx=-3)
        .encode(text="cut:N"),
        _words(rows, frame).encode(x=x),
        title=title,
        height=frame.height,
        width=max(MIN_WIDTH, BAND * len(order)),
    )


def _bars(rows: pd.DataFrame, top: float) -> pd.DataFrame:
    """One row per bar: its height on the axis, its `mean`, and in `cut` what a cut bar says."""
    grouped = rows.groupby(["group", "series"], sort=False)
    bars = grouped[GAP].first().assign(mean=grouped["final_val_loss"].mean())
    is_cut = grouped["final_val_loss"].max() > top
    cut = bars["mean"].map("↑ {:.3g}".format).where(is_cut, "")
    return bars.assign(final_val_loss=bars["mean"].clip(upper=top), cut=cut).reset_index()


def _words(rows: pd.DataFrame, frame: _Frame) -> alt.Chart:
    """The words above the highest point of each group."""
    words = [
        {
            "group": group,
            "final_val_loss": min(of_group["final_val_loss"].max(), frame.top),
            "words": "\n".join(lines),
            "above": -4 - LINE * (len(lines) - 1),
        }
        for group, of_group in rows.groupby("group", sort=False)
        for lines in [_of_group(of_group)]
    ]
    table = pd.DataFrame(words).fillna({"final_val_loss": frame.bottom})
    marks = alt.Chart(table).mark_text(
        baseline="bottom", dy=alt.expr("datum.above"), lineBreak="\n", lineHeight=LINE
    )
    return marks.encode(y=frame.y, text="words:N")


def _of_group(rows: pd.DataFrame) -> list[str]:
    """Lines with the gap of each arm, named if there are several; for sync alone with its n."""
    arms = rows[rows["pairs"].notna()].drop_duplicates("series").to_dict("records")
    lines = []
    for row in arms:
        lines += [str(row["series"])] if len(arms) > 1 else []
        lines += [f"{row['gap']:+.3f}"] if row["n"] else []
        lines += [f"[{row['low']:+.3f},", f"{row['high']:+.3f}]"] if row["n"] > 1 else []
        lines += [diverged_text(row), "diverged"] if row["diverged"] else [f"n={row['n']}"]
    sync = rows[rows["pairs"].isna()]
    lost = int((sync["status"] == Status.DIVERGED).sum())
    if lost:
        lines += [f"{'sync: ' if arms else ''}{lost} of {len(sync)}", "diverged"]
    return lines or [f"n={len(sync)}"]


def _names(order: Sequence[str]) -> alt.Axis:
    """Labels of bars, turned where they would overlap."""
    is_crowded = (len(order) > 3 and max(map(len, order)) > 6) or max(map(len, order)) > 12
    return alt.Axis(labelAngle=-30 if is_crowded else 0, labelLimit=140, labelOverlap=False)
