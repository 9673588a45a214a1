"""The token tax of all trials of a scale, and the speed-up of the pipeline that it eats up."""

import altair as alt
import pandas as pd

from pipegap.analysis.figures.figure import Chart, Figure
from pipegap.analysis.figures.panels import PANEL, number_axis, panels_of, ratio_axis
from pipegap.analysis.figures.style import (
    INK,
    SOLID,
    arm_styles,
    legend,
    names_above,
    optimizer_styles,
    ordered_styles,
    reference_in_rows,
    rounded,
    tooltips,
    whiskers,
    words_beside,
)
from pipegap.analysis.statistics.tax import (
    ESTIMATED,
    LENGTHS,
    MAIN_ARMS,
    REPORTED,
    SLOPE,
    best_taxes,
    reported_taxes,
)
from pipegap.analysis.table import names

AS_MEAN = {"tax": "mean", "tax_low": "low", "tax_high": "high", "tax_n": "n"}
"""The columns of a tax → those of any mean."""
OF_TAX = ["optimizer", "series", "arm", "setting", "tax_from"]
COLUMNS = [*PANEL, "row", "who", *OF_TAX, *AS_MEAN.values()]
OURS = "these trials"
SHAPES = {
    LENGTHS: ("circle", "delayed runs of several lengths"),
    SLOPE: ("square", "the slope of sync's own law"),
    REPORTED: ("diamond", "reported by others"),
    ESTIMATED: ("cross", "a gap reported by others, the slope estimated"),
}
"""Where a tax is from → its mark, and what the legend calls it."""
ROW_HEIGHT = 36  # pixels: a name above each row, since names are long
RATIO = "updates to sync's loss, over sync's own"

STAGES = (2, 4, 8, 16)
MICROBATCHES = (4, 8, 16, 32, 64)
SPEED_UP, TAX = "speed-up", "tax"
AT_PIPELINE = [
    *(*PANEL, "kind", "series", "optimizer", "arm", "setting", "stages", "microbatches"),
    *AS_MEAN.values(),
]


def token_tax(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per optimizer and arm, at its `best_taxes`, and one per number of others.

    The rows of these trials come first; each part is sorted from the smallest tax on. There is no
    row without a tax of these trials.
    `row` says what it is, in words. `mean`, `low` and `high` are the tax and its interval, over `n`
    seeds.
    """
    taxes_here = own_taxes(gaps)
    if taxes_here.empty:
        return pd.DataFrame(columns=COLUMNS)
    taxes_elsewhere = reported_taxes().rename(columns=AS_MEAN)
    taxes_elsewhere["series"] = taxes_elsewhere["arm"].map(names.REPORTED_ARMS)
    table = pd.concat([taxes_here.assign(who=OURS), taxes_elsewhere])
    suffix = (" (" + table["who"] + ")").where(table["who"] != OURS, "")
    table["row"] = table["optimizer"].map(names.optimizer) + ", " + table["series"] + suffix
    table = table.assign(panel="token tax", subtitle="", is_other=table["who"] != OURS)
    order = ["is_other", "mean"]
    return table.sort_values(order, kind="stable")[COLUMNS].reset_index(drop=True)


def own_taxes(gaps: pd.DataFrame) -> pd.DataFrame:
    """Return `best_taxes`: OF_TAX and the columns of a mean; `series` is the name of the arm."""
    table = best_taxes(gaps)
    table["series"] = table["arm"].map(names.arms(gaps))
    return table[[*OF_TAX, *AS_MEAN]].rename(columns=AS_MEAN)


def tax_rows(data: pd.DataFrame) -> list[Chart]:
    """Draw one chart of the rows of `token_tax`, in their order."""
    columns = ["row", "series", "setting", "tax_from", "n", "mean", "low", "high"]
    tax_table = rounded(data, columns).assign(
        words=[
            f"{mean:.2f}" + ("" if pd.isna(n) else f"  n={n:g}")  # others report no n
            for mean, n in data[["mean", "n"]].itertuples(index=False)
        ],
        source=[SHAPES[name][1] for name in data["tax_from"]],
    )
    x = ratio_axis(alt.X("mean:Q"), RATIO, data[["mean", "low", "high"]])
    y = alt.Y("row:N", sort=[*tax_table["row"]], axis=None)
    looks = arm_styles(data)
    key = alt.Legend(columns=2, symbolType="square", symbolSize=70, symbolStrokeWidth=0)
    colors = alt.Scale(domain=[*looks], range=[style.color for style in looks.values()])
    base = alt.Chart(tax_table).encode(y=y, color=alt.Color("series:N", legend=key, scale=colors))
    dots = base.mark_point(filled=True, size=60, opacity=1)
    layers = [
        reference_in_rows(1.0, base, ROW_HEIGHT / 2),
        whiskers(base, alt.X("low:Q", title=RATIO, scale=x["scale"]), 1.4),
        dots.encode(x=x, shape=_shape(data), tooltip=tooltips(columns)),
        words_beside(tax_table, y),
        *names_above(tax_table, y, -15),
    ]
    return [alt.layer(*layers, title="", height=ROW_HEIGHT * len(data))]


def _shape(data: pd.DataFrame) -> alt.Shape:
    marks, words = zip(
        *(SHAPES[name] for name in SHAPES if name in {*data["tax_from"]}), strict=True
    )
    # One column: a page cuts off what is wider.
    key = alt.Legend(columns=1, symbolFillColor=INK, symbolStrokeWidth=0)
    return alt.Shape("source:N", scale=alt.Scale(domain=[*words], range=[*marks]), legend=key)


def break_even(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return the speed-ups of pipelines, and the tax of each optimizer; columns: AT_PIPELINE.

    There is one row of the `kind` SPEED_UP per number of stages and of microbatches, and one of the
    kind TAX per optimizer: that of Error Feedback, or of the delay where only that has one, at its
    `best_taxes`. `mean` is the speed-up of 2BW over 1F1B with equal stages, or the tax. Empty
    without a tax.
    """
    taxes_here = own_taxes(gaps)
    taxes_here = taxes_here[taxes_here["arm"].isin(MAIN_ARMS)]
    if taxes_here.empty:
        return pd.DataFrame(columns=AT_PIPELINE)
    last_arm = taxes_here.drop_duplicates("optimizer", keep="last")  # MAIN_ARMS end with the best
    series = last_arm["optimizer"].map(names.optimizer) + ", " + last_arm["series"]
    table = pd.concat([speed_ups(), last_arm.assign(kind=TAX, series=series)], ignore_index=True)
    return table.assign(panel="2BW over 1F1B", subtitle="").reindex(columns=AT_PIPELINE)


def speed_ups() -> pd.DataFrame:
    """Return the rows of `break_even` of the kind SPEED_UP, with at least as many microbatches as
    stages, which fill the pipeline.

    Of equal stages 1F1B makes a batch in the time of m + p − 1 microbatches and 2BW in that of m;
    the simulation of `advice.speed` says the same.
    """
    shapes = [(stages, m) for stages in STAGES for m in MICROBATCHES if m >= stages]
    rows = [(SPEED_UP, f"p = {p}", p, m, (m + p - 1) / m) for p, m in shapes]  # exact: no interval
    return pd.DataFrame(rows, columns=["kind", "series", "stages", "microbatches", "mean"])


def speed_lines(data: pd.DataFrame) -> list[Chart]:
    """Draw one chart of the rows of `break_even`."""
    y = ratio_axis(alt.Y("mean:Q"), "speed-up, or token tax", data[["mean", "low", "high"]])
    [panel] = panels_of(data)
    taxes, speeds = data[data["kind"] == TAX], data[data["kind"] != TAX]
    pipelines = list(dict.fromkeys(speeds["series"]))
    styles = {name: look._replace(dash=SOLID) for name, look in ordered_styles(pipelines).items()}
    looks_of_taxes = optimizer_styles(taxes).items()
    styles |= {name: look._replace(dash=(6, 3)) for name, look in looks_of_taxes}
    means_of_arms = zip(taxes["series"], taxes["mean"], taxes["n"], strict=True)
    labels = {arm: f"{arm} {mean:.2f} (n={n})" for arm, mean, n in means_of_arms}
    look = legend(labels | {name: name for name in pipelines}, styles, lines=True)
    x = number_axis("microbatches", "microbatches m", speeds["microbatches"])
    columns = ["series", "n", "mean", "low", "high", "setting"]
    speed = alt.Chart(rounded(speeds, ["series", "stages", "microbatches", "mean"]))
    tax = alt.Chart(rounded(taxes, columns)).encode(color=look.color)
    # The same title: Vega-Lite joins the titles of the layers of one axis if they differ.
    low = alt.Y("low:Q", scale=y["scale"], title=y["title"])
    tooltip = tooltips(["stages", "microbatches", "mean"])
    intervals = tax.transform_filter("isValid(datum.low)").encode(y=low, y2=alt.Y2("high:Q"))
    dashes = tax.encode(y=y, strokeDash=look.dash, tooltip=tooltips(columns))
    lines = speed.encode(x=x, y=y, color=look.color, strokeDash=look.dash, tooltip=tooltip)
    layers = [
        intervals.mark_rect(opacity=0.15, stroke=None),
        dashes.mark_rule(strokeWidth=1.6),
        lines.mark_line(point=True),
    ]
    return [alt.layer(*layers, title=panel.title)]


FIGURES = (
    Figure(
        name="break_even",
        title="Break-even: the speed-up of the pipeline against the token tax",
        data=break_even,
        charts=speed_lines,
        caption=(
            "lines: how many batches 2BW makes in the time of one of 1F1B, with equal "
            "stages, a backward of two forwards",
            "dashed: the token tax with its 95 % interval; the delay pays where a line lies above "
            "it",
        ),
        together=True,
    ),
    Figure(
        name="token_tax",
        title="Token tax: how many times sync's updates a delayed run needs",
        data=token_tax,
        charts=tax_rows,
        caption=(
            "dots: means over n seeds; lines: 95 % intervals; 1: the delay costs nothing",
            "each arm at the point of the lowest loss of sync that has a tax; others' numbers have "
            "no interval",
        ),
        columns=1,
        together=True,
    ),
)
