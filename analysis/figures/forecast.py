"""The figure of a forecast: of a target that a command names, so no report has it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from analysis.figures.data import forecast
from analysis.figures.draw.forecast import CAPTION, MEASURED_CAPTION, charts
from analysis.figures.figure import Figure, Plot, Rows, plot
from analysis.figures.files import save
from analysis.forecast.answer import Answer
from analysis.forecast.ladder import Rung


def drawn(answers: Sequence[Answer], measured: Sequence[Rung] = ()) -> Plot:
    """The laws of some answers that have a forecast, with their rungs, and what was measured
    there since, if that is known: one rung for each answer."""
    shown = forecast.data(answers, measured)
    figure = Figure(
        name="forecast",
        title="What the delay will cost: the law of the rungs, and the forecast",
        data=lambda trials, gaps: shown,
        charts=charts,
        caption=(*CAPTION, MEASURED_CAPTION) if measured else CAPTION,
        rows=Rows.INTERVALS,
    )
    return plot(figure, shown)


def draw(answers: Sequence[Answer], out: Path) -> Path:
    """Writes the figure of some forecasts and returns its SVG."""
    out.mkdir(parents=True, exist_ok=True)
    save(drawn(answers), out)
    return out / "forecast.svg"
