"""The figures of any trials."""

from functools import partial

from analysis.figures import curves, diagnostics, dots, lines, over_training
from analysis.figures.data import (
    final_loss,
    gap_by_coefficient,
    gap_by_key,
    measured,
)
from analysis.figures.figure import Figure

FIGURES = (
    Figure(
        name="final_losses",
        title="What the delay costs each optimizer",
        data=final_loss.data,
        charts=dots.by_optimizer,
        caption=(*dots.CAPTION, dots.BEST),
        columns=2,
    ),
    Figure(
        name="validation_curves",
        title="Validation loss over training",
        data=over_training.data,
        charts=curves.of_validation,
        caption=(*curves.CAPTION, curves.OF_GAPS),
        columns=2,
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
            data=partial(measured.data, name=name),
            charts=partial(diagnostics.charts, name=name),
            caption=curves.CAPTION,
        )
        for name, title in measured.MEASURED.items()
    ),
)
