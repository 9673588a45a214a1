"""The figures of the token tax, of all trials of a scale together."""

from analysis.figures import taxes
from analysis.figures.data import break_even, token_tax
from analysis.figures.figure import Figure, Rows

FIGURES = (
    Figure(
        name="token_tax",
        title="Token tax: how many times sync's updates a delayed run needs",
        data=token_tax.data,
        charts=taxes.rows,
        caption=taxes.CAPTION,
        columns=1,
        rows=Rows.INTERVALS,
        together=True,
    ),
    Figure(
        name="break_even",
        title="Break-even: the speed-up of the pipeline against the token tax",
        data=break_even.data,
        charts=taxes.break_even,
        caption=taxes.BREAK_EVEN,
        rows=Rows.INTERVALS,
        together=True,
    ),
)
