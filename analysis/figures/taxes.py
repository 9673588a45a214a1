"""Token taxes: one row for each with its interval, and beside the speed-up that they eat up."""

from __future__ import annotations

import altair as alt
import pandas as pd

from analysis.figures.data.break_even import TAX
from analysis.figures.figure import Chart
from analysis.figures.marks import hover, legend, panels_of, rounded
from analysis.figures.scales import of_numbers, of_ratios
from analysis.figures.style import INK, SOFT, SOLID, arm_styles, ordered_styles
from analysis.statistics.reported import ESTIMATED, REPORTED
from analysis.statistics.tax import LENGTHS, SLOPE

SHAPES = {
    LENGTHS: ("circle", "delayed runs of several lengths"),
    SLOPE: ("square", "the slope of sync's own law"),
    REPORTED: ("diamond", "reported by others"),
    ESTIMATED: ("cross", "a gap reported by others, the slope estimated"),
}
"""Where a tax is from → its mark, and what the legend calls it."""
ROW_HEIGHT, LABEL_WIDTH = 20, 400  # pixels
RATIO = "updates to sync's loss, over sync's own"
CAPTION = (
    "dots: means over n seeds; lines: 95 % intervals; 1: the delay costs nothing",
    "each arm at the point of the lowest loss of sync that has a tax; others' numbers have no "
    "interval",
)
BREAK_EVEN = (
    "lines: how many batches 2BW makes in the time of one of 1F1B, simulated: equal stages, a "
    "backward of two forwards",
    "dashed: the token tax with its 95 % interval; the delay pays where a line lies above it",
)


def rows(data: pd.DataFrame) -> list[Chart]:
    """One chart of the rows of `data.token_tax`, in their order."""
    columns = ["row", "series", "setting", "tax_from", "n", "mean", "low", "high"]
    shown = rounded(data, columns).assign(
        words=[_words(*row) for row in data[["mean", "n"]].itertuples(index=False)],
        source=[SHAPES[name][1] for name in data["tax_from"]],
    )
    x = of_ratios(alt.X("mean:Q"), RATIO, data[["mean", "low", "high"]])
    low = alt.X("low:Q", title=RATIO, scale=x["scale"])
    axis = alt.Axis(labelLimit=LABEL_WIDTH, domain=False, ticks=False, labelPadding=6)
    y = alt.Y("row:N", sort=[*shown["row"]], title=None, axis=axis)
    base = alt.Chart(shown).encode(y=y, color=_color(data))
    whiskers = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.4)
    dots = base.mark_point(filled=True, size=60, opacity=1)
    one = alt.Chart(pd.DataFrame({"mean": [1.0]})).mark_rule(color=INK)
    layers = [
        one.encode(x=x),
        whiskers.encode(x=low, x2=alt.X2("high:Q")),
        dots.encode(x=x, shape=_shape(data), tooltip=hover(columns)),
        alt.Chart(shown)
        .mark_text(align="left", dx=6, fontSize=9, color=SOFT)
        .encode(y=y, x=alt.XValue("width"), text=alt.Text("words:N")),
    ]
    return [alt.layer(*layers, title="", height=ROW_HEIGHT * len(data))]


def _words(mean: float, n: float) -> str:
    """`1.08  n=3`; others do not say how many seeds they had."""
    return f"{mean:.2f}" + ("" if pd.isna(n) else f"  n={n:g}")


def _color(data: pd.DataFrame) -> alt.Color:
    looks = arm_styles(data)
    colors = alt.Scale(domain=[*looks], range=[style.color for style in looks.values()])
    return alt.Color("series:N", legend=None, scale=colors)


def _shape(data: pd.DataFrame) -> alt.Shape:
    shown = [SHAPES[name] for name in SHAPES if name in set(data["tax_from"])]
    marks = alt.Scale(domain=[words for _, words in shown], range=[mark for mark, _ in shown])
    return alt.Shape("source:N", scale=marks, legend=alt.Legend(columns=2))


def break_even(data: pd.DataFrame) -> list[Chart]:
    """One chart per optimizer of rows of `data.break_even`."""
    y = of_ratios(alt.Y("mean:Q"), "speed-up, or token tax", data[["mean", "low", "high"]])
    return [_panel(of_panel, title, y) for title, of_panel in panels_of(data)]


def _panel(data: pd.DataFrame, title: alt.TitleParams, y: alt.Y) -> Chart:
    taxes, speeds = data[data["kind"] == TAX], data[data["kind"] != TAX]
    names = list(dict.fromkeys(speeds["series"]))
    lines = {name: style._replace(dash=SOLID) for name, style in ordered_styles(names).items()}
    styles = lines | {
        name: style._replace(dash=(6, 3)) for name, style in arm_styles(taxes).items()
    }
    look = legend(_labels(taxes) | {name: name for name in names}, styles, lines=True)
    x = of_numbers("microbatches", "microbatches m", speeds["microbatches"])
    columns = ["series", "n", "mean", "low", "high"]
    speed = alt.Chart(rounded(speeds, ["series", "stages", "microbatches", "mean"]))
    tax = alt.Chart(rounded(taxes, [*columns, "setting"])).encode(color=look.color)
    return alt.layer(
        tax.transform_filter("isValid(datum.low)")
        .mark_rect(opacity=0.15, stroke=None)
        .encode(y=alt.Y("low:Q", scale=y["scale"], title=y["title"]), y2=alt.Y2("high:Q")),
        tax.mark_rule(strokeWidth=1.6).encode(
            y=y, strokeDash=look.dash, tooltip=hover([*columns, "setting"])
        ),
        speed.mark_line(point=True).encode(
            x=x,
            y=y,
            color=look.color,
            strokeDash=look.dash,
            tooltip=hover(["stages", "microbatches", "mean"]),
        ),
        title=title,
    )


def _labels(taxes: pd.DataFrame) -> dict[str, str]:
    """`delay 1.32 (n=3)` for each arm."""
    known = zip(taxes["series"], taxes["mean"], taxes["n"], strict=True)
    return {arm: f"{arm} {mean:.2f} (n={n})" for arm, mean, n in known}
