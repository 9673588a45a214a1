"""The training loss where the delay is switched on, by β2 (figure 20)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import altair as alt
import pandas as pd

from analysis.figures import curves
from analysis.figures.figure import Chart
from analysis.figures.scales import linear
from analysis.figures.staleness import AFTER, BEFORE, FROM_SWITCH
from analysis.figures.style import OTHER_COLORS, OTHER_DASHES, Style
from analysis.figures.swept import along
from analysis.spikes import WINDOW, spikes
from analysis.store import training_losses

KEY = "optimizer.variance_decay"
OF_SPIKE = ["height", "n", "mean_height", "low", "high"]
COLUMNS = [
    *["panel", KEY, "series", "seed", "status", "trial_id", *OF_SPIKE],
    *["update", "from_switch", "train_loss", "running_mean"],
]
CAPTION = (
    f"training loss, running mean over {WINDOW} updates (the one shown and those before it)",
    "lines: mean over n seeds; faint: each seed; legend: height of the spike, 95 % interval",
)


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """A row an update around the switch, of every trial with a synchronous start at a point that
    differs from others in β2; `height` is that of `spikes.spikes`, beside those of its arm."""
    points = along(trials, [KEY])[["panel", KEY]]
    started = spikes(trials).merge(points, left_on="point", right_index=True)
    started = started.sort_values(["panel", KEY, "arm", "seed"])
    several = started["arm"].nunique() > 1
    started["series"] = [
        (f"{arm}, " if several else "") + f"β2={value:g}"
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
    """A panel an optimizer, a line a β2."""
    scale = linear(data["running_mean"])
    y = alt.Y("running_mean:Q", title="training loss (nats per token)", scale=scale)
    return curves.of_means(data, y, FROM_SWITCH, styles=_styles, label=_label)


def _styles(series: Iterable[str]) -> dict[str, Style]:
    names = list(dict.fromkeys(series))
    looks = zip(names, OTHER_COLORS * len(names), OTHER_DASHES * len(names), strict=False)
    return {name: Style(color, dash, "circle") for name, color, dash in looks}


def _label(rows: pd.DataFrame) -> str:
    row = rows.iloc[0]
    interval = "" if pd.isna(row["low"]) else f" [{row['low']:+.3f}, {row['high']:+.3f}]"
    height = "" if pd.isna(row["mean_height"]) else f": {row['mean_height']:+.3f}{interval}"
    return f"{row['series']}{height} (n={rows['seed'].nunique()})"
