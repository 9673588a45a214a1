"""Gaps and final losses against a number that was swept: means with their interval, every seed, and
divergences.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import altair as alt
import numpy as np
import pandas as pd

from pipegap.analysis.figures.figure import Chart, Figure
from pipegap.analysis.figures.panels import (
    IN_PANEL,
    MARGIN,
    MEAN,
    OF_GAPS,
    OF_SEED,
    PANEL,
    SERIES,
    Panel,
    far_apart,
    gap_axis,
    loss_axis,
    number_axis,
    paired_seeds,
    panels_of,
    panels_of_keys,
    results_along,
    with_means,
    with_variant,
)
from pipegap.analysis.figures.style import (
    FAINT,
    INK,
    SeriesLook,
    Style,
    Styles,
    arm_styles,
    counted,
    dodged,
    legend,
    readable,
    rounded,
    tooltips,
)
from pipegap.analysis.table import names
from pipegap.analysis.table.points import in_order, varied

CORRECTION = ["method", "family", "coefficient"]
OF_LOSSES = [*PANEL, "key", "value", *SERIES, "size", "loss", "gap", *OF_SEED, *MEAN]
"""One row per trial with its `loss`, and one with its `gap` where sync completed; MEAN is of
that number. `size` orders several series of one arm: the tokens that they train on."""
KEYS = [*PANEL, "series", "value"]


def gaps_by_key(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return rows of OF_GAPS: one panel per optimizer and swept number, one series per arm.

    A panel holds the points that differ in its key alone, and in keys that follow from it. The
    subtitle names a tuned learning rate that follows, and leaves out the number of updates that
    goes with a batch size. The table is empty if no number was swept.
    """
    paired = paired_seeds(trials, gaps)
    panels = [
        paired.merge(panel, left_on="point", right_index=True)
        .assign(panel=names.optimizer(optimizer))
        .sort_values(IN_PANEL)
        for optimizer, points in varied(trials).items()
        for panel in panels_of_keys(points[points.index.isin(paired["point"])])
    ]
    return _joined(panels)


def _joined(panels: list[pd.DataFrame]) -> pd.DataFrame:
    if not panels:
        return pd.DataFrame(columns=OF_GAPS)
    return pd.concat(panels, ignore_index=True).reindex(columns=OF_GAPS)


def gaps_by_coefficient(
    trials: pd.DataFrame, gaps: pd.DataFrame, correction: str | None = None
) -> pd.DataFrame:
    """Return rows of OF_GAPS: one panel per optimizer, point and correction with several values.

    Rows of arms without correction have no value. With `correction`, that one alone is shown.
    """
    paired = paired_seeds(trials, gaps).assign(key="correction.coefficient")
    corrections = trials.drop_duplicates("trial_id").set_index("trial_id")[CORRECTION]
    paired[CORRECTION] = corrections.loc[paired["trial_id"]].to_numpy()
    paired["value"] = paired["coefficient"].astype(float)
    if correction is not None:
        paired = paired[paired["method"].isin([correction, "none"])]
    return _joined([panel.sort_values(IN_PANEL) for panel in _panels_of_methods(paired, trials)])


def _panels_of_methods(paired: pd.DataFrame, trials: pd.DataFrame) -> Iterator[pd.DataFrame]:
    settings, families = names.settings(trials), names.families(trials)
    with_value, keys = paired.dropna(subset="value"), ["optimizer", "point", "method"]
    for key, group in in_order(with_value, keys).groupby(keys, sort=False):
        optimizer, point, method = map(str, key)
        if group["value"].nunique() > 1:
            corrected = group.assign(series=with_variant(group, group["family"].map(families)))
            # The arm without correction, which has no coefficient: a band across the panel.
            plain = paired[
                (paired["optimizer"] == optimizer)
                & (paired["point"] == point)
                & paired["arm"].isin(group["base_arm"])
            ]
            yield pd.concat([corrected, plain.assign(value=np.nan)]).assign(
                panel=f"{names.optimizer(optimizer)}, {names.of_kind('correction', str(method))}",
                subtitle=settings[point],
            )


def gaps_by_delay(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return rows of OF_GAPS against the delay τ: one panel per optimizer and point, one series per
    correction.

    A series has several delays. Pipelines whose stages are not equally late have none: their series
    are named by their stages.
    """
    paired = paired_seeds(trials, gaps)
    if paired.empty:
        return _joined([])
    trial_rows = trials.drop_duplicates("trial_id").set_index("trial_id")
    late = paired.assign(
        key="pipeline.delay",
        value=trial_rows.loc[paired["trial_id"], "delay"].to_numpy(dtype=float),
        # `delay`, `delay of 2`, … are one series: the number stands on the axis.
        series=paired["series"].str.replace(r"^delay( of \d+)?", "delay of τ", regex=True),
        panel=paired["optimizer"].map(names.optimizer),
        subtitle=paired["point"].map(names.settings(trials)),
    )
    delays = late.groupby(["point", "series"])["value"].transform("nunique")
    return _joined([in_order(late[delays > 1], [*PANEL, *IN_PANEL])])


def optimizers_by_momentum(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return rows of OF_GAPS against momentum (figure 4): a panel per arm, a line per optimizer."""
    table = gaps_by_key(trials, gaps)
    table = table[table["key"] == "optimizer.momentum"]
    return _with_optimizers(table, table["series"])  # the arms, which were the series


def optimizers_by_coefficient(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return rows of OF_GAPS against λ (figure 15): one panel per kind of Error Feedback.

    The series are optimizers. The plain delay has coefficient 0.
    """
    table = gaps_by_coefficient(trials, gaps, correction="error_feedback")
    plain = table["value"].isna()
    kinds = [
        # The plain delay is in each panel, at λ = 0.
        _with_optimizers(table[plain | (table["series"] == kind)].fillna({"value": 0.0}), kind)
        for kind in table.loc[~plain, "series"].unique()
    ]
    return pd.concat(kinds, ignore_index=True) if kinds else table


def _with_optimizers(table: pd.DataFrame, panel: pd.Series | str) -> pd.DataFrame:
    """`subtitle` stays: what the points of a panel have in common beside their optimizer."""
    return table.assign(panel=panel, series=table["optimizer"].map(names.optimizer))


def losses_along(
    trials: pd.DataFrame,
    gaps: pd.DataFrame,
    key: str,
    by_tokens: bool = False,
    part_of: str = "",
) -> pd.DataFrame:
    """Return rows of OF_LOSSES against `key`: a series per arm and, if `by_tokens`, per number of
    tokens.

    Tokens are those that a point asks for; a diverged trial has fewer.
    """
    # A diverged seed trained on fewer, and would stand apart from its point on the axis.
    planned = trials.assign(tokens=trials.groupby("point")["tokens"].transform("max"))
    rows = results_along(planned, [key, "tokens"] if by_tokens else [key], part_of)
    if rows.empty:
        return pd.DataFrame(columns=OF_LOSSES)
    if by_tokens:
        tokens = rows["tokens"].map(names.parameters) + " tokens "
        rows = rows.assign(series=tokens + rows["series"].astype(str), size=rows["tokens"])
    rows = rows.assign(key=key, value=rows[key])
    losses = with_means(rows.assign(loss=rows["final_val_loss"]), "loss", KEYS)
    of_gaps = rows.merge(paired_seeds(trials, gaps)[["trial_id", "gap", *MEAN]], on="trial_id")
    # An empty part would change dtypes. MEAN of a row is that of its loss, or else of its gap.
    parts = [part.reindex(columns=OF_LOSSES) for part in (losses, of_gaps) if len(part)]
    table = pd.concat([part.astype({"loss": float, "gap": float}) for part in parts])
    return in_order(table, [*KEYS, "seed"]).reset_index(drop=True)


CAPTION = (
    "mean and its 95 % interval over n seeds; faint: each seed; lines stand side by side",
    "× k/n: k of n in which the arm diverged, not in the mean",
)
BAND = "band: the plain delay"
MOVED = alt.expr("datum.dodge")
MOST_VALUES = 12
"""With more values on its axis a panel has bands: whiskers and seeds would be a grey field."""
MANY = (
    "lines: means over n seeds; bands: 95 % intervals, the widest cut off; the values are too many "
    "for seeds and counts: the CSV has them",
    "gap: minus sync's final loss at the same seed; ×: at some seed the arm diverged",
)
MOST_ENDS = 0.95
"""Share of the ends of such bands that the axis holds: one interval of two seeds would flatten all
lines."""
WITH_MEAN = ["low", "high", "n", "diverged", "pairs"]
"""What is shown beside a mean."""


def gap_lines(data: pd.DataFrame, styles: Styles = arm_styles) -> list[Chart]:
    """Draw one chart per panel of rows of OF_GAPS; a series without values is a band."""
    looks, y, many = styles(data), _gap_axis(data), _many(data)
    return [_drawn(panel, "gap", y, looks, many) for panel in panels_of(data, looks)]


def loss_and_gap_lines(data: pd.DataFrame, styles: Styles = arm_styles) -> list[Chart]:
    """Draw two charts per panel of rows of OF_LOSSES: the loss, and the gap beside it."""
    # A row has a loss or a gap; a diverged trial has neither, and counts at the loss.
    is_loss, looks = data["loss"].notna() | data["gap"].isna(), styles(data)
    y = loss_axis(alt.Y("loss:Q"), _values(data[is_loss], "loss"), _room(data[is_loss]))
    many = _many(data)
    of_gap = _gap_axis(data.dropna(subset="gap"))
    charts: list[Chart] = []
    for panel in panels_of(data, looks):
        rows = panel.rows
        charts.append(_drawn(panel.of(rows[is_loss[rows.index]]), "loss", y, looks, many))
        if len(paired := rows.dropna(subset="gap")):
            charts.append(_drawn(panel.of(paired, ", gap"), "gap", of_gap, looks, many))
    return charts


def _many(data: pd.DataFrame) -> bool:
    """Return whether some panel has too many values on its axis to show every seed."""
    return bool(data.groupby(PANEL)["value"].nunique().max() > MOST_VALUES)


def _values(data: pd.DataFrame, column: str) -> pd.Series:
    """Return the values that the axis of a column holds. With bands these are all means, and the
    ends of intervals but for the widest."""
    if not _many(data):
        return data[[column, "low", "high", "mean"]].melt()["value"]
    low, high = data["low"].quantile(1 - MOST_ENDS), data["high"].quantile(MOST_ENDS)
    return pd.concat([data["mean"], pd.Series([low, high])])


def _gap_axis(data: pd.DataFrame) -> alt.Y:
    values = _values(data, "gap")
    return gap_axis(alt.Y("gap:Q"), values, _room(data), symlog=far_apart(values))


def _room(data: pd.DataFrame) -> float:
    """Return the share of the axis above the values, for the marks of what diverged."""
    if not (data["diverged"] > 0).any():
        return MARGIN
    # A line of marks for each series of the fullest panel, since all panels share the axis; a line
    # takes 7 % of the axis.
    return MARGIN + 0.07 * int(data.groupby(PANEL)["series"].nunique().max())


class _LineFrame(NamedTuple):
    """What the layers of a panel share; `y` shows the column `column`."""

    x: alt.X
    y: alt.Y
    column: str
    look: SeriesLook
    styles: Mapping[str, Style]
    series_in_legend: frozenset[str]

    def layer(self, rows: pd.DataFrame, quantity: str, *more: str) -> alt.Chart:
        """Return a chart of `rows` with their column `quantity` on the y axis."""
        layer_rows = rounded(rows, list(dict.fromkeys(["series", "value", quantity, *more])))
        places = dodged([name for name in self.styles if name in self.series_in_legend])
        layer_rows["dodge"] = [places[series] for series in layer_rows["series"]]
        # All layers of a panel share one field on the y axis, whatever they show there.
        chart = alt.Chart(layer_rows.rename(columns={quantity: self.column}))
        return chart.encode(y=self.y, color=self.look.color)


def _drawn(panel: Panel, column: str, y: alt.Y, styles: Mapping[str, Style], many: bool) -> Chart:
    rows = panel.rows
    zero = alt.Chart(pd.DataFrame({column: [0.0]})).mark_rule(color=INK)
    labels = {str(series): _label(of_series) for series, of_series in rows.groupby("series")}
    swept = rows.dropna(subset="value")
    # The values of all panels of the same axes, so that their x axes are equal.
    x = number_axis("value", names.key(rows["key"].iloc[0]), panel.same_axes["value"].dropna())
    series_in_legend = frozenset(map(str, swept["series"])) or frozenset(labels)
    frame = _LineFrame(
        x, y, column, legend(labels, styles, lines=many), styles, series_in_legend | {*labels}
    )
    layers = [
        *([zero.encode(y=y)] if column == "gap" else []),
        *_bands(frame, rows[rows["value"].isna()]),
        *_means(frame, swept, many=many),
        *([] if many else [_points(frame, swept).encode(x=x)]),
        *_diverged(frame, swept, [name for name in styles if name in labels], counts=not many),
    ]
    caption = {"usermeta": {"caption": MANY}} if many else {}
    return alt.layer(*layers, title=panel.title, **caption)


def _bands(frame: _LineFrame, rows: pd.DataFrame) -> list[alt.Chart]:
    """Draw bands across the panel, with their seeds on its right side."""
    means = rows.drop_duplicates("series")
    band = frame.layer(means.dropna(subset="low"), "low", "high")
    line = frame.layer(means.dropna(subset="mean"), "mean", *WITH_MEAN)
    tooltip = tooltips(["series", frame.column, *WITH_MEAN])
    return [
        band.mark_rect(opacity=0.15).encode(y2=alt.Y2("high:Q")),
        line.mark_rule(strokeWidth=1.6).encode(strokeDash=frame.look.dash, tooltip=tooltip),
        _points(frame, rows).encode(x=alt.XValue("width")),
    ]


def _means(frame: _LineFrame, rows: pd.DataFrame, *, many: bool) -> list[alt.Chart]:
    """Draw means with a whisker each, or of `many` values as a line in a ribbon."""
    means = rows.drop_duplicates(["series", "value"]).dropna(subset="mean")
    dots = frame.layer(means, "mean", *WITH_MEAN).encode(x=frame.x)
    line = dots.encode(strokeDash=frame.look.dash)
    ends = frame.layer(means.dropna(subset="low"), "low", "high")
    ends = ends.encode(x=frame.x, y2=alt.Y2("high:Q"))
    dots = dots.encode(tooltip=tooltips(["series", "value", frame.column, *WITH_MEAN]))
    if many:
        return [
            ends.mark_area(opacity=0.18, clip=True),
            line.mark_line(strokeWidth=1.4),
            dots.mark_point(opacity=0, size=40),  # for a pointer alone
        ]
    dots = dots.encode(shape=frame.look.shape)
    return [
        ends.mark_rule(strokeWidth=1.2, xOffset=MOVED),
        line.mark_line(strokeWidth=1.4, opacity=0.8, xOffset=MOVED),
        dots.mark_point(filled=True, size=45, opacity=1, xOffset=MOVED),
    ]


def _points(frame: _LineFrame, rows: pd.DataFrame) -> alt.Chart:
    tooltip = tooltips(["series", "value", frame.column, *OF_SEED])
    points = frame.layer(rows.dropna(subset=frame.column), frame.column, *OF_SEED)
    marks = points.mark_point(filled=True, size=14, opacity=1, fillOpacity=FAINT, xOffset=MOVED)
    return marks.encode(shape=frame.look.shape, tooltip=tooltip)


def _diverged(
    frame: _LineFrame, rows: pd.DataFrame, order: Sequence[str], *, counts: bool
) -> list[alt.Chart]:
    """Draw one line of text per series at the top of the panel: there is no gap to draw."""
    diverged_rows = rows[rows["diverged"] > 0].drop_duplicates(["series", "value"])
    of_pairs = zip(diverged_rows["diverged"], diverged_rows["pairs"], strict=True)
    words = [f"× {k}/{n}" if counts else "×" for k, n in of_pairs]
    marks = diverged_rows[["series", "value"]].assign(words=words)
    return [
        alt.Chart(of_series)
        .mark_text(
            baseline="top",
            y=2 + 14 * order.index(str(series)),  # pixels from the top of the panel
            color=readable(frame.styles[str(series)].color),
        )
        .encode(x=frame.x, text=alt.Text("words:N"))
        for series, of_series in marks.groupby("series")
    ]


def _label(rows: pd.DataFrame) -> str:
    """Return the series with the pairs behind each mean, and for a band how many diverged."""
    first = rows.iloc[0]
    is_band = rows["value"].isna().all() and first["diverged"]
    note = f", × {first['diverged']}/{first['pairs']}" if is_band else ""
    return f"{first['series']} ({counted(rows['n'])}{note})"


GAPS = Figure(
    name="gap_lines",
    title="Gap against what was swept",
    data=gaps_by_key,
    charts=gap_lines,
    caption=CAPTION,
)
LOSSES = Figure(
    name="horizon",
    title="Final loss over horizons",
    data=partial(losses_along, key="tokens"),
    charts=loss_and_gap_lines,
    caption=CAPTION,
    columns=2,
)
FIGURES = (
    GAPS,
    GAPS._replace(
        name="gap_by_coefficient",
        title="Gap against the coefficient of a correction",
        data=gaps_by_coefficient,
        caption=(*CAPTION, BAND),
    ),
    GAPS._replace(name="gap_by_delay", title="What a delay of τ updates costs", data=gaps_by_delay),
)
