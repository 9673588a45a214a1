"""The training loss where the delay is switched on, one line per β2 (figure 20)."""

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from analysis.figures import curves
from analysis.figures.diagnostics import AFTER, BEFORE, FROM_SWITCH
from analysis.figures.figure import Chart, Figure
from analysis.figures.rows import OF_SEED, PANEL
from analysis.figures.scales import Axis, linear
from analysis.figures.style import Style, ordered_styles
from analysis.figures.swept import along
from analysis.statistics.spikes import WINDOW, spikes
from analysis.table import names
from analysis.table.load import training_losses
from analysis.table.names import signed

KEY = "optimizer.variance_decay"
COLUMNS = [
    *(*PANEL, KEY, "series", "arm", *OF_SEED, "height", "n", "mean_height", "low", "high"),
    *("update", "from_switch", "train_loss", "running_mean"),
]


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per update around the switch, of trials whose point differs in β2.

    Only trials with a synchronous start are shown. `height` comes from `spikes`, and stands beside
    the mean of its arm.
    """
    points = along(trials, [KEY])[[*PANEL, KEY]]
    started = spikes(trials).merge(points, left_on="point", right_index=True)
    started = started.sort_values([*PANEL, KEY, "arm", "seed"])
    arms, several = names.arms(trials), started["arm"].nunique() > 1
    started["series"] = [
        (f"{arms[arm]}, " if several else "") + f"{names.key(KEY)} = {value:g}"
        for arm, value in started[["arm", KEY]].to_numpy()
    ]
    folders = trials.set_index("trial_id")["folder"]
    rows = [_around(folders[trial["trial_id"]], trial) for trial in started.to_dict("records")]
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=COLUMNS)


def _around(folder: str, trial: Mapping[Any, Any]) -> pd.DataFrame:
    losses = training_losses(folder)
    losses["from_switch"] = losses["update"] - trial["switch"]
    losses["running_mean"] = losses["train_loss"].rolling(WINDOW).mean()
    share = losses["from_switch"] / len(losses)
    of_trial = {name: trial[name] for name in COLUMNS if name in trial}
    return losses[share.between(-BEFORE, AFTER)].assign(**of_trial)[COLUMNS]


def charts(data: pd.DataFrame) -> list[Chart]:
    """Draw one panel per optimizer, one line per β2."""
    scale = linear(data["running_mean"])
    y = alt.Y("running_mean:Q", title="training loss (nats per token)", scale=scale)
    return curves.of_means(data, Axis("running_mean", y), FROM_SWITCH, styles=_styles, label=_label)


def _styles(rows: pd.DataFrame) -> dict[str, Style]:
    return ordered_styles(list(dict.fromkeys(rows["series"])))


def _label(rows: pd.DataFrame) -> str:
    row = rows.iloc[0]
    interval = "" if pd.isna(row["low"]) else f" [{signed(row['low'])}, {signed(row['high'])}]"
    height = "" if pd.isna(row["mean_height"]) else f": {signed(row['mean_height'])}{interval}"
    return f"{row['series']}{height} (n={rows['seed'].nunique()})"


SPIKE = Figure(
    name="fig20_spike",
    title="The spike at the switch by β₂",
    data=data,
    charts=charts,
    source="figure 20 (135M)",
    sweeps=("spike",),
    caption=(
        f"training loss, running mean over {WINDOW} updates (the one shown and those before it)",
        "lines: mean over n seeds; faint: each seed; legend: height of the spike, 95 % interval",
    ),
)
