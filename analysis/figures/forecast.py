"""The figure of a forecast: its target is named by a command, so no report has it."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from analysis.figures.figure import Chart, Figure, Plot, plot
from analysis.figures.files import save
from analysis.figures.marks import hover, legend, panels_of, rounded
from analysis.figures.rows import PANEL
from analysis.figures.scales import far_apart, of_gaps, of_numbers
from analysis.figures.style import INK, SOFT, ordered_styles
from analysis.forecast.answer import Answer
from analysis.forecast.forecast import Forecaster
from analysis.forecast.ladder import Rung, name_of
from analysis.statistics.intervals import mean_interval
from analysis.table import names

RUNG, LAW, TARGET, MEASURED = "rung", "law", "forecast", "measured"
STEPS = 61
"""Lengths at which the law is drawn."""
COLUMNS = [*PANEL, "kind", "series", "updates", "n", "mean", "low", "high", "is_beyond"]
CAPTION = (
    "points: mean gaps of the rungs with 95 % intervals; line and band: the law with the 95 % "
    "interval of a mean of as many seeds as are forecast",
    "hatched: extrapolated, no rung is as short or as long; diamond: the forecast",
)
MEASURED_CAPTION = "open circle: what was measured after the forecast"


def drawn(answers: Sequence[Answer], measured: Sequence[Rung] = ()) -> Plot:
    """Draw the laws of the answers that have a forecast, with their rungs.

    `measured` is what was measured at each target since: one rung per answer, or none at all.
    """
    shown = data(answers, measured)
    figure = Figure(
        name="forecast",
        title="What the delay will cost: the law of the rungs, and the forecast",
        data=lambda trials, gaps: shown,
        charts=charts,
        caption=(*CAPTION, MEASURED_CAPTION) if measured else CAPTION,
    )
    return plot(figure, shown)


def draw(answers: Sequence[Answer], out: Path) -> Path:
    """Write the figure of some forecasts and return the path of its SVG."""
    out.mkdir(parents=True, exist_ok=True)
    save(drawn(answers), out)
    return out / "forecast.svg"


def data(answers: Sequence[Answer], measured: Sequence[Rung] = ()) -> pd.DataFrame:
    """Return one row per rung, per length at which the law is drawn, and per target.

    Answers without a forecast have no rows. `kind` is RUNG, LAW, TARGET or MEASURED. `mean`, `low`
    and `high` are gaps in nats per token. `series` names batch and size. `is_beyond` tells lengths
    outside of those of the rungs.
    """
    rows = [
        row
        for answer, rung in zip_longest(answers, measured)
        if answer.point
        for row in _rows(answer, rung)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _rows(answer: Answer, measured: Rung | None) -> Iterator[dict[str, Any]]:
    panel = {
        "panel": f"{names.optimizer(answer.ladder.optimizer)}, {answer.ladder.arm}",
        "subtitle": f"law and forecast: {_size(answer.target)}",
    }
    lengths = answer.ladder.settings[:, 0]
    yield from ({**panel, **_seen(RUNG, rung, lengths)} for rung in answer.ladder.rungs)
    if measured is not None:
        yield {**panel, **_seen(MEASURED, measured, lengths)}
    yield from ({**panel, **row} for row in _law(answer))


def _seen(kind: str, rung: Rung, lengths: Any) -> dict[str, Any]:
    low, high = mean_interval(rung.gaps)
    return {
        **{"kind": kind, "series": _size(rung.settings), "updates": rung.updates},
        **{"n": len(rung.gaps), "mean": rung.gaps.mean(), "low": low, "high": high},
        "is_beyond": _is_outside(rung.updates, lengths),
    }


def _law(answer: Answer) -> Iterator[dict[str, Any]]:
    """Yield the law from the shortest to the longest of rungs and target, and at the target."""
    own, target = answer.ladder.settings[:, 0], answer.target
    ends = min(own.min(), target[0]), max(own.max(), target[0])
    lengths = [*np.geomspace(*ends, STEPS), target[0]]
    settings = np.array([(length, *target[1:]) for length in lengths])
    points = Forecaster(answer.ladder).at(settings, answer.seeds)
    for i, (length, point) in enumerate(zip(lengths, points, strict=True)):
        low, high = point.gap_interval
        yield {
            **{"kind": LAW if i < STEPS else TARGET, "series": _size(target)},
            **{"updates": length, "n": answer.seeds, "mean": point.gap, "low": low, "high": high},
            "is_beyond": _is_outside(length, own),
        }


def _is_outside(length: float, lengths: Any) -> bool:
    """Whether a length is beyond the rungs, rounding aside."""
    return bool(length < lengths.min() * (1 - 1e-9) or length > lengths.max() * (1 + 1e-9))


def _size(settings: Sequence[float]) -> str:
    """Return `B=128, N=108,928`."""
    return name_of(settings).partition(", ")[2]


def charts(data: pd.DataFrame) -> list[Chart]:
    """Draw one chart per optimizer and arm: the law in its band, hatched where no rung is."""
    values = pd.concat([data["mean"], data["low"], data["high"]])
    y = of_gaps(alt.Y("mean:Q"), values, symlog=far_apart(values))
    return [_panel(rows, title, y) for title, rows in panels_of(data)]


def _panel(data: pd.DataFrame, title: alt.TitleParams, y: alt.Y) -> Chart:
    columns = ["series", "updates", "n", "mean", "low", "high"]
    law, rungs, target, measured = (
        rounded(data[data["kind"] == kind], columns) for kind in (LAW, RUNG, TARGET, MEASURED)
    )
    beyond = rounded(data[(data["kind"] == LAW) & data["is_beyond"]], columns)
    x = of_numbers("updates", "updates T", pd.concat([rungs["updates"], target["updates"]]))
    low, high = alt.Y("low:Q", title=y["title"], scale=y["scale"]), alt.Y2("high:Q")
    sizes = list(dict.fromkeys(rungs["series"]))
    look = legend({name: name for name in sizes}, ordered_styles(sizes))
    band, hatched, line, points, at_target, after = (
        alt.Chart(rows).encode(x=x) for rows in (law, beyond, law, rungs, target, measured)
    )
    points, told = points.encode(color=look.color), hover(columns)
    return alt.layer(
        band.mark_area(opacity=0.12, color=INK).encode(y=low, y2=high),
        # Vega-Lite has no pattern to fill with: upright lines hatch the band.
        hatched.mark_rule(color=SOFT, strokeWidth=0.8).encode(y=low, y2=high),
        line.mark_line(color=INK).encode(y=y),
        points.mark_rule(strokeWidth=1.4).encode(y=low, y2=high),
        points.mark_point(filled=True, size=50, opacity=1).encode(
            y=y, shape=look.shape, tooltip=told
        ),
        at_target.mark_rule(color=INK, strokeWidth=1.6).encode(y=low, y2=high),
        at_target.mark_point(shape="diamond", filled=True, size=90, color=INK, opacity=1).encode(
            y=y, tooltip=told
        ),
        after.mark_rule(color=INK, strokeDash=[2, 2]).encode(y=low, y2=high),
        after.mark_point(size=70, color=INK, opacity=1).encode(y=y, tooltip=told),
        title=title,
    )
