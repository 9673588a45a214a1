"""Figures over training: losses, the gap while it grows, and diagnostics of the delayed update."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import compress, product
from typing import Any

import altair as alt
import pandas as pd

from pipegap.analysis.figures.figure import FEWEST, Chart, Figure
from pipegap.analysis.figures.panels import (
    OF_SEED,
    PANEL,
    SERIES,
    Panel,
    along,
    best_points,
    column_of,
    far_apart,
    gap_axis,
    linear,
    log_axis,
    panels_of,
    token_axis,
)
from pipegap.analysis.figures.style import (
    FAINT,
    INK,
    Style,
    Styles,
    arm_styles,
    legend,
    ordered_styles,
    readable,
    rounded,
    tooltips,
)
from pipegap.analysis.statistics.diagnostics import WINDOW, spikes
from pipegap.analysis.statistics.pairs import mean_intervals, pairs
from pipegap.analysis.table import names
from pipegap.analysis.table.metrics import metrics, training_losses, validation_losses
from pipegap.analysis.table.names import signed
from pipegap.analysis.table.points import in_order, remembered, updates_asked
from pipegap.analysis.table.rows import Row
from pipegap.trainer.base.errors import FINAL, Status

# Losses over training and the gap while it grows: one line per arm, its seeds behind it.
#
# `mean_lines` draws such lines of any number that trials have over tokens, or over updates since
# a switch.

COLUMNS = [*PANEL, *SERIES, *OF_SEED]
CAPTION = ("lines: mean over n seeds, to where the first of them diverged (×); faint: each seed",)


def below_each_other(curves: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the curves of several trials in one table, whose index level `trial` counts them."""
    return pd.concat(curves, keys=range(len(curves)), names=["trial", None])


def over_tokens(rows: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    """Return COLUMNS, `update`, `tokens`, and the curves' own column.

    `rows` are those of `below_each_other`, with `update` and one more column: the number `trial` of
    a curve is the number of its row in `points`.
    """
    of_row, rows = rows.index.get_level_values("trial"), rows.reset_index(drop=True)
    trials = points[[*COLUMNS, "batch_size", "seq_len"]].iloc[of_row].reset_index(drop=True)
    tokens = (rows["update"] + 1) * trials["batch_size"] * trials["seq_len"]  # updates are 0-based
    *_, last = rows.columns
    return trials[COLUMNS].assign(update=rows["update"], tokens=tokens, **{last: rows[last]})


def with_seeds(rows: pd.DataFrame) -> str:
    """Return the name of a series in the legend, with its number of seeds."""
    diverged = rows.loc[rows["status"] == Status.DIVERGED, "seed"].nunique()
    note = f", {diverged} diverged" if diverged else ""
    return f"{rows['series'].iloc[0]} (n={rows['seed'].nunique()}{note})"


def mean_lines(
    data: pd.DataFrame,
    y: alt.Y,
    x: alt.X | None = None,
    *,
    styles: Styles = arm_styles,
    label: Callable[[pd.DataFrame], str] = with_seeds,
) -> list[Chart]:
    """Draw one chart per panel of rows of `over_tokens`, against `x` (else tokens) and `y`.

    `styles` returns the looks of the series, `label` the words of one series in the legend.
    """
    looks = styles(data)
    across = x or token_axis(data["tokens"])
    return [mean_panel(panel, y, across, looks, label) for panel in panels_of(data, looks)]


def mean_panel(
    panel: Panel,
    y: alt.Y,
    x: alt.X,
    looks: Mapping[str, Style],
    label: Callable[[pd.DataFrame], str] = with_seeds,
) -> alt.LayerChart:
    """Draw one of the charts of `mean_lines`."""
    rows = panel.rows
    labels = {str(series): label(of_series) for series, of_series in rows.groupby("series")}
    look = legend(labels, looks, lines=True)
    with_value = rows.dropna(subset=column_of(y))
    columns = list(dict.fromkeys(["series", *OF_SEED, "update", column_of(x), column_of(y)]))
    seeds = marks(with_value, columns, x, y)
    seeds = seeds.encode(color=look.color, detail=alt.Detail("trial_id:N"))
    ends = with_value[with_value["status"] == Status.DIVERGED].groupby("trial_id").tail(1)
    series_columns = ["series", column_of(x), column_of(y)]
    means = marks(_means(rows, column_of(x), column_of(y)), series_columns, x, y)
    layers = [
        seeds.mark_line(strokeOpacity=FAINT, strokeWidth=0.8),
        # Invisible points catch the pointer on the page; `figure.picture` leaves them out.
        seeds.mark_point(opacity=0, size=40).encode(tooltip=tooltips(columns)),
        means.mark_line(strokeWidth=1.8).encode(color=look.color, strokeDash=look.dash),
    ]
    for name, of_series in ends.groupby("series"):
        crosses = marks(of_series, series_columns, x, y)
        color = readable(looks[str(name)].color)
        layers.append(crosses.mark_text(text="×", fontSize=16, color=color))
    chart = alt.layer(*layers, title=panel.title)
    assert isinstance(chart, alt.LayerChart)
    return chart


def marks(rows: pd.DataFrame, columns: list[str], x: alt.X, y: alt.Y | None) -> alt.Chart:
    """Return a chart of these columns, without a mark, against `x` and `y`."""
    chart = alt.Chart(rounded(rows, columns)).encode(x=x)
    return chart.encode(y=y) if y else chart


def _means(rows: pd.DataFrame, across: str, up: str) -> pd.DataFrame:
    """Return the mean over all seeds of a series, where each of them has a value."""
    grids = [
        of_series.pivot(index=across, columns="trial_id", values=up)  # [updates, trials]
        .mean(axis=1, skipna=False)  # of fewer seeds the mean would jump where one ends
        .dropna()
        .reset_index(name=up)
        .assign(series=series)
        for series, of_series in rows.groupby("series")
    ]
    return pd.concat(grids)


Read = Callable[[pd.DataFrame], pd.DataFrame]
"""Trials → the curve of each, below each other."""
OF_GAP = ["gap", "n", "mean", "low", "high"]
"""The gap of a trial at an update, and the mean of its series there with its 95 % interval."""
STAGES = "pipeline.num_stages"
POINTS = 100
"""A curve of training losses has about that many points: each is the mean of a hundredth of the
run."""
TITLES = {
    "val_loss": ["validation loss (nats per token)"],
    "train_loss": [
        "training loss (nats per token)",
        "points: means of 1 % of the run",
    ],
}
PAIRED = "gap: minus the loss of sync at the same seed and update; band: 95 % interval of the mean"


def losses(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per evaluation of every trial of the best points: one panel per optimizer.

    The columns are COLUMNS, `update`, the `tokens` trained on until then, `val_loss`, and OF_GAP.
    If no trial was evaluated FEWEST times, the rows are those of `training`, if these are more.
    """
    return _with_points(partial(_curves, trials, gaps))


def losses_of(trials: pd.DataFrame, gaps: pd.DataFrame, optimizers: Iterable[str]) -> pd.DataFrame:
    """Return `losses` of these optimizers alone."""
    return losses(trials[trials["optimizer"].isin(optimizers)], gaps)


def losses_by_stages(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return `losses` with one panel per optimizer and number of stages P (figure 6).

    P is a number that some arm has among several. An arm that was run at one P alone, because it
    does not depend on it, is in each panel.
    """
    return _with_points(partial(_by_stages, trials, gaps))


def training(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per trial of the best points and POINTS-th part of its run (figure 19).

    The columns are COLUMNS, the last `update` of the part, the `tokens` until then, the mean
    `train_loss`, and OF_GAP. Every batch is in some part.
    """
    return _curves(trials, gaps, _parts)


def _with_points(curves: Callable[[Read], pd.DataFrame]) -> pd.DataFrame:
    """Return the curves of evaluations if one has FEWEST points, else those that have more."""
    evaluations = curves(
        lambda points: below_each_other([*map(validation_losses, points["folder"])])
    )
    if (evaluations["trial_id"].value_counts() >= FEWEST).any():
        return evaluations
    parts = curves(_parts)
    return parts if len(parts) > len(evaluations) else evaluations


def _by_stages(trials: pd.DataFrame, gaps: pd.DataFrame, reader: Read) -> pd.DataFrame:
    done = trials[trials["status"].isin(FINAL)]
    stages = done[STAGES] if STAGES in done else pd.Series(dtype=int)
    per_arm = stages.groupby(done["arm"]).transform("nunique")
    # An arm that ran at one P alone, such as sync, makes no panel and stands in all of them.
    at = product(done["optimizer"].unique(), sorted(stages[per_arm > 1].unique()))
    panels = []
    for optimizer, count in at:
        has_count = (stages == count) | (per_arm == 1)
        panel = _curves(done[has_count & (done["optimizer"] == optimizer)], gaps, reader)
        panels.append(panel.assign(panel=panel["panel"] + f", P = {count}"))
    return pd.concat(panels, ignore_index=True) if panels else _curves(done[:0], gaps, reader)


def _curves(trials: pd.DataFrame, gaps: pd.DataFrame, reader: Read) -> pd.DataFrame:
    """Return the curves that `reader` reads of the trials of the best points, with OF_GAP."""
    points = best_points(trials, gaps)
    if points.empty:
        return pd.DataFrame(columns=[*dict.fromkeys([*COLUMNS, *OF_GAP])])
    return _with_gaps(over_tokens(reader(points), points), trials)


def _parts(points: pd.DataFrame) -> pd.DataFrame:
    """Return means of a POINTS-th of each run; a part that the run did not finish is left out."""
    losses = below_each_other([*map(training_losses, points["folder"])])
    lengths = (updates_asked(points) / POINTS).round().clip(lower=1).to_numpy(dtype=int)
    length = lengths[losses.index.get_level_values("trial")]
    part = losses["update"] // length
    # A part with fewer updates would be the mean of fewer batches, and so noisier.
    is_whole = part.groupby(["trial", part]).transform("size") == length
    parts = losses[is_whole].groupby(["trial", part[is_whole]])
    return parts.agg({"update": "max", "train_loss": "mean"})


def _with_gaps(curves: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Return curves with OF_GAP of their loss, which is the last column.

    OF_GAP is missing for sync, and without a partner that completed. Both trials of a pair saw the
    same batches, whose noise cancels. The mean ends where the first of its trials does, and is
    missing before all of them have a value.
    """
    keys, with_all = [*PANEL, "series"], [*dict.fromkeys([*curves, *OF_GAP])]
    if curves.empty:
        return curves.reindex(columns=with_all)
    *_, loss = curves
    paired = pairs(trials)
    paired = paired[paired["status_sync"] == Status.COMPLETED]
    partner = curves["trial_id"].map(paired.set_index("trial_id")["trial_id_sync"])
    losses = curves.drop_duplicates(["trial_id", "update"]).set_index(["trial_id", "update"])[loss]
    of_partner = losses.reindex(pd.MultiIndex.from_arrays([partner, curves["update"]]))
    table = curves.assign(gap=curves[loss].to_numpy() - of_partner.to_numpy())
    groups = table[partner.notna()].groupby(keys)
    means = {key: _means_of_gaps(of_series) for key, of_series in groups}
    if not means:
        return table.reindex(columns=with_all)
    of_series = pd.concat(means, names=keys).reset_index(keys)
    return table.merge(of_series, on=[*keys, "update"], how="left")


def _means_of_gaps(of_series: pd.DataFrame) -> pd.DataFrame:
    gaps = of_series.pivot_table(  # [updates, trials]; only updates at which every trial has a gap
        index="update", columns="trial_id", values="gap", dropna=False
    ).dropna()
    low, high = mean_intervals(gaps.to_numpy())
    mean = gaps.mean(axis=1).to_numpy()
    columns = {"update": gaps.index, "n": gaps.shape[1], "mean": mean, "low": low, "high": high}
    return pd.DataFrame(columns)


def with_gaps(data: pd.DataFrame) -> list[Chart]:
    """Draw two charts per panel: the losses of all panels, and below them the gaps."""
    [column] = [name for name in TITLES if name in data]
    y = alt.Y(f"{column}:Q", title=TITLES[column], scale=linear(data[column]))
    x, looks = token_axis(data["tokens"]), arm_styles(data)
    values = data.dropna(subset="gap")[["gap", "low", "high"]].melt()["value"]
    symlog = far_apart(values)
    of_gap = gap_axis(alt.Y("gap:Q"), values, symlog=symlog)
    all_panels = [*panels_of(data, looks)]
    charts: list[Chart] = [mean_panel(panel, y, x, looks) for panel in all_panels]
    charts += [
        _gap_panel(panel.of(paired, ", gap"), of_gap, x, looks)
        for panel in all_panels
        if len(paired := panel.rows.dropna(subset="gap"))
    ]
    # Up to four panels stand beside each other, and each gap below its loss.
    if len(charts) == 2 * len(all_panels) <= 8:
        charts[0] = charts[0].properties(usermeta={"columns": len(all_panels)})
    return charts


def _gap_panel(panel: Panel, y: alt.Y, x: alt.X, looks: Mapping[str, Style]) -> Chart:
    """Draw seeds and means as `mean_panel` does, over the interval's band and the line of 0."""
    band_rows = panel.rows.dropna(subset="low").drop_duplicates(["series", "update"])
    chart = mean_panel(panel, y, x, looks)
    band = marks(band_rows, ["series", column_of(x), "low", "high"], x, None)
    low = alt.Y("low:Q", scale=y["scale"], title=y["title"])
    color = chart.layer[0].encoding.color  # with the legend of the lines, so that both share one
    zero = alt.Chart(pd.DataFrame({"gap": [0.0]})).mark_rule(color=INK).encode(y=y)
    area = band.mark_area(opacity=0.18).encode(y=low, y2=alt.Y2("high:Q"), color=color)
    return alt.layer(zero, area, *chart.layer, title=panel.title)


OVER_TRAINING = Figure(
    name="validation_curves",
    title="Loss over training",
    data=losses,
    charts=with_gaps,
    caption=(*CAPTION, PAIRED),
    columns=4,
)


# How far the delayed update is from the fresh one (figures 17, 18), and other diagnostics.
#
# How much a correction changes the gradient: where it hardly does, it cannot help. For mixtures
# of experts, how many choices a delay makes stale, and how unequal the loads are. And the
# training loss where the delay is switched on, one line per β2 (figure 20).

MEASURED = {
    "update_cosine": "cosine of delayed and fresh update",
    "update_error": "relative error of the delayed update",
    "gradient_change": "relative change of the gradient",
    "changed_share": "share of experts that the newest weights would not choose",
    "greatest_load": "load of the busiest expert over the mean",
}
"""Diagnostics that have a figure → what they are."""
BEFORE, AFTER = 0.05, 0.15
"""Shares of the run around the switch to a delay that figures zoom in on."""
KEY = "optimizer.variance_decay"
OF_SPIKE = [
    *(*PANEL, KEY, "series", "arm", *OF_SEED, "height", "n", "mean_height", "low", "high"),
    *("update", "from_switch", "train_loss", "running_mean"),
]


def measured(trials: pd.DataFrame, gaps: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return one row per measurement of `name`: `tokens` trained on and the value.

    Trials that only ever measured 0 are left out: they have no delay, or no correction of the
    gradient.
    """
    points = best_points(trials, gaps)
    # What only mixtures of experts have; the others are of the whole model.
    group = "routing" if name in ("changed_share", "greatest_load") else "all"
    rows = _rows(trials, gaps)
    measurements = [_series(trial_rows, group, name) for trial_rows in rows] if any(rows) else []
    # `all` of an empty curve is True: a trial that measured nothing is left out too.
    is_shown = [not (curve[name] == 0).all() for curve in measurements]
    if not any(is_shown):
        return pd.DataFrame(columns=COLUMNS)
    return over_tokens(below_each_other([*compress(measurements, is_shown)]), points[is_shown])


@remembered
def _rows(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[list[Row]]:
    """Return the rows with diagnostics of each trial of `best_points`, read once for all."""
    points = best_points(trials, gaps)
    return [[*metrics(folder, "diagnostics")] for folder in points.get("folder", [])]


def _series(rows: Sequence[Row], group: str, name: str) -> pd.DataFrame:
    """Return columns `update` and `name`, a diagnostic of a group of parameters, as measured."""
    values = [(row["update"], row["diagnostics"].get(group, {}).get(name)) for row in rows]
    return pd.DataFrame(values, columns=["update", name]).astype({name: float})


def from_switch(trials: pd.DataFrame, gaps: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the rows of `measured` of trials with a synchronous start.

    `from_switch` counts updates since the first one with a delay, `share` is that number over the
    trial's updates.
    """
    rows = measured(trials, gaps, name)
    switches = spikes(trials).set_index("trial_id")["switch"]
    rows = rows[rows["trial_id"].isin(switches.index)]
    lengths = trials.drop_duplicates("trial_id").set_index("trial_id")["num_updates"]
    since = rows.get("update", pd.Series(dtype=int)) - rows["trial_id"].map(switches)
    return rows.assign(from_switch=since, share=since / rows["trial_id"].map(lengths))


def charts(data: pd.DataFrame, name: str) -> list[Chart]:
    """Draw one panel per optimizer, as validation curves are drawn."""
    return mean_lines(data, _axis(data, name))


def around_switch(data: pd.DataFrame, name: str) -> list[Chart]:
    """Draw each optimizer over the whole run, and beside that around the switch."""
    y, looks, x = _axis(data, name), arm_styles(data), token_axis(data["tokens"])
    rows_near = data[data["share"].between(-BEFORE, AFTER)]
    at_switch = _from_switch(rows_near)
    panels: list[Chart] = []
    for panel in panels_of(data, looks):
        panels.append(mean_panel(panel, y, x, looks))
        if len(rows := panel.rows[panel.rows.index.isin(rows_near.index)]):
            panels.append(mean_panel(panel.of(rows, ", at the switch"), y, at_switch, looks))
    return panels


def _from_switch(rows: pd.DataFrame) -> alt.X:
    since = rows["from_switch"]
    scale = alt.Scale(domain=[float(since.min()), float(since.max())], nice=False)
    return alt.X("from_switch:Q", title="updates from the switch", scale=scale)


def _axis(data: pd.DataFrame, name: str) -> alt.Y:
    """Return a log axis for more than two decades, else a linear one.

    A log axis has no place for 0, which updates without a delay measure: 0 is not drawn.
    """
    positive = data.loc[data[name] > 0, name]
    if positive.max() > 100 * positive.min():
        return log_axis(name, MEASURED[name], positive)
    return alt.Y(f"{name}:Q", title=MEASURED[name], scale=linear(data[name]))


def spike(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per update around the switch, of trials whose point differs in β2.

    Only trials with a synchronous start are shown. `height` comes from `spikes`, and stands beside
    the mean of its arm.
    """
    points = along(trials, [KEY])[[*PANEL, KEY]]
    started = spikes(trials).merge(points, left_on="point", right_index=True)
    started = in_order(started, [*PANEL, KEY, "arm", "seed"])
    arms, several = names.arms(trials), started["arm"].nunique() > 1
    started["series"] = [
        (f"{arms[arm]}, " if several else "") + f"{names.key(KEY)} = {value:g}"
        for arm, value in started[["arm", KEY]].to_numpy()
    ]
    folders = trials.set_index("trial_id")["folder"]
    rows = [_around(folders[trial["trial_id"]], trial) for trial in started.to_dict("records")]
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=OF_SPIKE)


def _around(folder: str, trial: Mapping[Any, Any]) -> pd.DataFrame:
    losses = training_losses(folder)
    losses["from_switch"] = losses["update"] - trial["switch"]
    # Before the rows are cut: the first one shown averages updates that are not.
    losses["running_mean"] = losses["train_loss"].rolling(WINDOW).mean()
    share = losses["from_switch"] / len(losses)
    of_trial = {name: trial[name] for name in OF_SPIKE if name in trial}
    return losses[share.between(-BEFORE, AFTER)].assign(**of_trial)[OF_SPIKE]


def spike_charts(data: pd.DataFrame) -> list[Chart]:
    """Draw one panel per optimizer, one line per β2."""
    scale = linear(data["running_mean"])
    y = alt.Y("running_mean:Q", title="training loss (nats per token)", scale=scale)
    looks = ordered_styles(list(dict.fromkeys(data["series"])))
    return mean_lines(data, y, _from_switch(data), styles=lambda _: looks, label=_label)


def _label(rows: pd.DataFrame) -> str:
    row = rows.iloc[0]
    interval = "" if pd.isna(row["low"]) else f" [{signed(row['low'])}, {signed(row['high'])}]"
    height = "" if pd.isna(row["mean_height"]) else f": {signed(row['mean_height'])}{interval}"
    return f"{row['series']}{height} (n={rows['seed'].nunique()})"


SPIKE = Figure(
    name="spike",
    title="The spike at the switch by β₂",
    data=spike,
    charts=spike_charts,
    caption=(
        f"training loss, running mean over {WINDOW} updates (the one shown and those before it)",
        "lines: mean over n seeds; faint: each seed; legend: height of the spike, 95 % interval",
    ),
)


FIGURES = (
    OVER_TRAINING,
    *(
        Figure(
            name=name,
            title=title.capitalize(),
            data=partial(measured, name=name),
            charts=partial(charts, name=name),
            caption=CAPTION,
        )
        for name, title in MEASURED.items()
    ),
)
