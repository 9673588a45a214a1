"""The figure of a forecast: of a target that a command names, so no report has it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from analysis.figures.data import forecast
from analysis.figures.draw.forecast import CAPTION, charts
from analysis.figures.figure import Figure, Rows, plot
from analysis.figures.files import save
from analysis.forecast.answer import Answer


def draw(answers: Sequence[Answer], out: Path) -> Path:
    """Writes the figure of some forecasts and returns its SVG."""
    figure = Figure(
        name="forecast",
        title="What the delay will cost: the law of the rungs, and the forecast",
        data=lambda trials, gaps: forecast.data(answers),
        charts=charts,
        caption=CAPTION,
        rows=Rows.INTERVALS,
    )
    out.mkdir(parents=True, exist_ok=True)
    save(plot(figure, forecast.data(answers)), out)
    return out / "forecast.svg"
