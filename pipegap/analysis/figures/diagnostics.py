"""How far the delayed update is from the fresh one (figures 17, 18), and other diagnostics.

How much a correction changes the gradient: where it hardly does, it cannot help. For mixtures of
experts, how many choices a delay makes stale, and how unequal the loads are. And the training loss
where the delay is switched on, one line per β2 (figure 20).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any

import altair as alt
import pandas as pd

from pipegap.analysis.figures.curves import (
    CAPTION,
    COLUMNS,
    below_each_other,
    mean_lines,
    mean_panel,
    over_tokens,
)
from pipegap.analysis.figures.figure import Chart, Figure
from pipegap.analysis.figures.multiples import panels_of
from pipegap.analysis.figures.rows import OF_SEED, PANEL, along, best_points
from pipegap.analysis.figures.scales import linear, log_axis, token_axis
from pipegap.analysis.figures.style import arm_styles, ordered_styles
from pipegap.analysis.statistics.diagnostics import WINDOW, spikes
from pipegap.analysis.table import names
from pipegap.analysis.table.metrics import metrics, training_losses
from pipegap.analysis.table.names import signed
from pipegap.analysis.table.points import remembered
from pipegap.analysis.table.rows import Row
from pipegap.analysis.table.tasks import in_order

MEASURED = {
    "update_cosine": "cosine of delayed and fresh update",
    "update_error": "relative error of the delayed update",
    "gradient_change": "relative change of the gradient",
    "changed_share": "share of experts that the newest weights would not choose",
    "greatest_load": "load of the busiest expert over the mean",
}
"""Diagnostics that have a figure → what they are."""
OF_ROUTING = ("changed_share", "greatest_load")
"""Diagnostics that only mixtures of experts have; the others are of the whole model."""
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
    group = "routing" if name in OF_ROUTING else "all"
    rows = _rows(trials, gaps)
    measurements = [_series(trial_rows, group, name) for trial_rows in rows] if any(rows) else []
    is_shown = [not (curve[name] == 0).all() for curve in measurements]  # nor if it is empty
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
        if len(rows_of_panel := panel.rows[panel.rows.index.isin(rows_near.index)]):
            panels.append(
                mean_panel(panel.of(rows_of_panel, ", at the switch"), y, at_switch, looks)
            )
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
FIGURES = tuple(
    Figure(
        name=name,
        title=title.capitalize(),
        data=partial(measured, name=name),
        charts=partial(charts, name=name),
        caption=CAPTION,
    )
    for name, title in MEASURED.items()
)
