"""Lines over training: loss and gap of each optimizer, one line per arm, its seeds behind it."""

from collections.abc import Callable

import altair as alt
import pandas as pd

from analysis.figures import over_training
from analysis.figures.figure import Chart, Figure
from analysis.figures.marks import FAINT, GAP_TITLE, SeriesLook, hover, legend, panels_of, rounded
from analysis.figures.rows import OF_SEED
from analysis.figures.scales import Axis, linear, of_gaps, of_tokens
from analysis.figures.style import INK, Styles, arm_styles
from trainer.base.status import Status

CAPTION = ("lines: mean over n seeds, to where the first of them diverged (×); faint: each seed",)
OF_GAPS = "gap: minus the loss of sync at the same seed and update; band: 95 % interval of the mean"
OF_TRAINING = "training loss: means over a hundredth of the run"


def with_seeds(rows: pd.DataFrame) -> str:
    """Return the name of a series in the legend, with its number of seeds."""
    diverged = rows.loc[rows["status"] == Status.DIVERGED, "seed"].nunique()
    note = f", {diverged} diverged" if diverged else ""
    return f"{rows['series'].iloc[0]} (n={rows['seed'].nunique()}{note})"


def of_validation(data: pd.DataFrame) -> list[Chart]:
    """Draw two charts per panel of validation losses: the loss, and the gap beside it."""
    return _with_gaps(data, "val_loss", "validation loss (nats per token)")


def of_training(data: pd.DataFrame) -> list[Chart]:
    """Draw two charts per panel of training losses: the loss, and the gap beside it."""
    return _with_gaps(data, "train_loss", "training loss (nats per token)")


def _with_gaps(data: pd.DataFrame, column: str, title: str) -> list[Chart]:
    y = Axis(column, alt.Y(f"{column}:Q", title=title, scale=linear(data[column])))
    x, looks = of_tokens(data["tokens"]), arm_styles(data)
    gaps = data.dropna(subset="gap")
    values = pd.concat([gaps["gap"], gaps["low"], gaps["high"]])
    of_gap = Axis("gap", of_gaps(alt.Y("gap:Q"), GAP_TITLE, values))
    charts: list[Chart] = []
    for _, rows in data.groupby(["panel", "subtitle"], sort=False):
        charts += of_means(rows, y, x, styles=lambda _: looks)
        paired = rows.dropna(subset="gap")
        if len(paired):
            charts += _gap_charts(paired.assign(panel=paired["panel"] + ", gap"), of_gap, x, looks)
    return charts


def _gap_charts(rows: pd.DataFrame, y: Axis[alt.Y], x: Axis[alt.X], looks: dict) -> list[Chart]:
    """Draw seeds and means as `of_means` does, over the band of the interval and the line of 0."""
    shown = rows.dropna(subset="low").drop_duplicates(["series", "update"])
    panels: list[Chart] = []
    for chart in of_means(rows, y, x, styles=lambda _: looks):
        band = _marks(shown, ["series", x.column, "low", "high"], x, None).mark_area(opacity=0.18)
        low = alt.Y("low:Q", scale=y.channel["scale"], title=y.channel["title"])
        color = chart.layer[0].encoding.color
        zero = alt.Chart(pd.DataFrame({"gap": [0.0]})).mark_rule(color=INK).encode(y=y.channel)
        layers = [zero, band.encode(y=low, y2=alt.Y2("high:Q"), color=color), *chart.layer]
        panels.append(alt.layer(*layers, title=chart.title))
    return panels


def of_means(
    data: pd.DataFrame,
    y: Axis[alt.Y],
    x: Axis[alt.X] | None = None,
    *,
    styles: Styles = arm_styles,
    label: Callable[[pd.DataFrame], str] = with_seeds,
) -> list[Chart]:
    """Draw one chart per panel of rows of `over_training`, against `x` (else tokens) and `y`.

    `styles` returns the looks of the series, `label` the words of one series in the legend.
    """
    looks = styles(data)
    across = x or of_tokens(data["tokens"])
    panels: list[Chart] = []
    for title, rows in panels_of(data):
        labels = {str(series): label(of_series) for series, of_series in rows.groupby("series")}
        panels.append(_panel(rows, title, across, y, legend(labels, looks, lines=True)))
    return panels


def _panel(
    rows: pd.DataFrame, title: alt.TitleParams, x: Axis[alt.X], y: Axis[alt.Y], look: SeriesLook
) -> alt.LayerChart:
    known = rows.dropna(subset=y.column)
    told = list(dict.fromkeys(["series", *OF_SEED, "update", x.column, y.column]))
    seeds = _marks(known, told, x, y).encode(color=look.color, detail=alt.Detail("trial_id:N"))
    ends = known[known["status"] == Status.DIVERGED].groupby("trial_id").tail(1)
    shown = ["series", x.column, y.column]
    means = _marks(_means(rows, x.column, y.column), shown, x, y).mark_line(strokeWidth=1.8)
    layers = [
        seeds.mark_line(opacity=FAINT, strokeWidth=0.8),
        seeds.mark_point(opacity=0, size=40).encode(tooltip=hover(told)),
        means.encode(color=look.color, strokeDash=look.dash),
    ]
    if len(ends):
        crosses = _marks(ends, shown, x, y).mark_text(text="×", fontSize=16)
        layers.append(crosses.encode(color=look.color))
    panel = alt.layer(*layers, title=title)
    assert isinstance(panel, alt.LayerChart)
    return panel


def _marks(
    rows: pd.DataFrame, columns: list[str], x: Axis[alt.X], y: Axis[alt.Y] | None
) -> alt.Chart:
    chart = alt.Chart(rounded(rows, columns)).encode(x=x.channel)
    return chart.encode(y=y.channel) if y else chart


def _means(rows: pd.DataFrame, across: str, up: str) -> pd.DataFrame:
    """Return the mean over all seeds of a series, where each of them has a value."""
    grids = [
        of_series.pivot(index=across, columns="trial_id", values=up)
        .mean(axis=1, skipna=False)
        .dropna()
        .reset_index(name=up)
        .assign(series=series)
        for series, of_series in rows.groupby("series")
    ]
    return pd.concat(grids)


VALIDATION = Figure(
    name="validation_curves",
    title="Validation loss over training",
    data=over_training.validation,
    charts=of_validation,
    caption=(*CAPTION, OF_GAPS),
    columns=2,
)
FIGURES = (VALIDATION,)
