"""The figures of any trials."""

from functools import partial

from analysis.figures import (
    bars,
    curves,
    diagnostics,
    final_loss,
    gap_by_coefficient,
    gap_by_key,
    lines,
)
from analysis.figures.figure import Figure

GENERAL = (
    Figure(
        name="validation_curves",
        title="Validation loss over training",
        data=curves.data,
        charts=curves.charts,
        caption=curves.CAPTION,
    ),
    Figure(
        name="final_losses",
        title="Final validation losses",
        data=final_loss.data,
        charts=bars.charts,
        caption=bars.CAPTION,
    ),
    Figure(
        name="gap_lines",
        title="Gap against what was swept",
        data=gap_by_key.data,
        charts=lines.of_gap,
        caption=lines.CAPTION,
    ),
    Figure(
        name="gap_by_coefficient",
        title="Gap against the coefficient of a correction",
        data=gap_by_coefficient.data,
        charts=lines.of_gap,
        caption=(*lines.CAPTION, lines.BAND),
    ),
    *(
        Figure(
            name=name,
            title=title.capitalize(),
            data=partial(diagnostics.data, name=name),
            charts=partial(diagnostics.charts, name=name),
            caption=curves.CAPTION,
        )
        for name, title in diagnostics.SHOWN.items()
    ),
)
