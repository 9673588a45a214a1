"""The figure of table 4: downstream scores."""

from analysis.figures.data import downstream
from analysis.figures.draw.downstream import CAPTION, rows
from analysis.figures.figure import Figure, Rows

FIGURES = (
    Figure(
        name="downstream",
        title="Downstream scores beside those of sync",
        data=downstream.data,
        charts=rows,
        caption=CAPTION,
        source="table 4 (10B MoE)",
        columns=2,
        rows=Rows.INTERVALS,
    ),
)
