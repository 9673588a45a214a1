"""How far the delayed update is from the fresh one (figures 17, 18), and other diagnostics.

How much a correction changes the gradient: where it hardly does, it cannot help. For mixtures of
experts, how many choices a delay makes stale, and how unequal the loads are.
"""

from functools import partial
from itertools import compress

import altair as alt
import pandas as pd

from analysis.figures import curves
from analysis.figures.figure import Chart, Figure
from analysis.figures.over_training import COLUMNS, over_tokens
from analysis.figures.rows import PANEL, best_points
from analysis.figures.scales import Axis, linear, of_positive
from analysis.figures.style import arm_styles
from analysis.statistics.spikes import spikes
from analysis.table.load import diagnostics

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
FROM_SWITCH = Axis(
    "from_switch",
    alt.X("from_switch:Q", title="updates from the switch", scale=alt.Scale(nice=False)),
)


def measured(trials: pd.DataFrame, gaps: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return one row per measurement of `name`: `tokens` trained on and the value.

    Trials that only ever measured 0 are left out: they have no delay, or no correction of the
    gradient.
    """
    shown = best_points(trials, gaps)
    group = "routing" if name in OF_ROUTING else "all"
    measurements = [diagnostics(folder, group, name) for folder in shown.get("folder", [])]
    is_shown = [not (curve[name] == 0).all() for curve in measurements]  # nor if it is empty
    if not any(is_shown):
        return pd.DataFrame(columns=COLUMNS)
    return over_tokens([*compress(measurements, is_shown)], shown[is_shown])


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
    return curves.of_means(data, _axis(data, name))


def around_switch(data: pd.DataFrame, name: str) -> list[Chart]:
    """Draw each optimizer over the whole run, and beside that around the switch."""
    y, looks = _axis(data, name), arm_styles(data)
    panels: list[Chart] = []
    for _, rows in data.groupby(PANEL, sort=False):
        near = rows[rows["share"].between(-BEFORE, AFTER)]
        near = near.assign(panel=near["panel"] + ", at the switch")
        panels += curves.of_means(rows, y, styles=lambda _: looks)
        panels += curves.of_means(near, y, FROM_SWITCH, styles=lambda _: looks)
    return panels


def _axis(data: pd.DataFrame, name: str) -> Axis[alt.Y]:
    """Return a log axis for more than two decades, else a linear one.

    A log axis has no place for 0, which updates without a delay measure: 0 is not drawn.
    """
    positive = data.loc[data[name] > 0, name]
    if positive.max() > 100 * positive.min():
        return Axis(name, of_positive(name, MEASURED[name], positive))
    return Axis(name, alt.Y(f"{name}:Q", title=MEASURED[name], scale=linear(data[name])))


FIGURES = tuple(
    Figure(
        name=name,
        title=title.capitalize(),
        data=partial(measured, name=name),
        charts=partial(charts, name=name),
        caption=curves.CAPTION,
    )
    for name, title in MEASURED.items()
)
