"""The figures in docs/, drawn from the trials published there."""

from __future__ import annotations

from collections.abc import Mapping

from analysis.figures import BY_NAME
from analysis.figures.draw.fonts import with_font
from analysis.figures.figure import Spec, plot, whole
from analysis.figures.files import picture
from bench.documents.published import DOCS, LENGTHS, View, of_sweep, view
from trainer.base.atomic import write_atomically

PICTURES: Mapping[str, tuple[str, str]] = {
    "final_losses": ("final_losses", "main"),
    "optimizers": ("fig02_optimizers", "synchronous_start"),
    "gradient_feedback": ("final_losses", "gradient_feedback"),
    "taylor": ("fig14_taylor", "taylor"),
    "momentum": ("fig04_momentum", "momentum"),
    "coefficient": ("fig15_coefficient", "coefficient"),
    "batch_size": ("fig13_batch_size", "batch_size"),
    "token_tax": ("token_tax", ""),
    "break_even": ("break_even", ""),
}
"""SVG in docs/ → the figure of the report, and the sweep whose trials it shows; without one, the
trials of several lengths. A CSV has no curves, and so no figure over training is among them."""


def pictured(name: str) -> Spec:
    """The specification of one of PICTURES."""
    figure_name, sweep = PICTURES[name]
    figure = BY_NAME[figure_name]
    shown: View = of_sweep(sweep) if sweep else view(LENGTHS)
    return whole(plot(figure, figure.data(*shown)))


def write() -> None:
    """Writes all of them."""
    for name in PICTURES:
        svg = with_font(picture(pictured(name)))
        write_atomically(DOCS / f"{name}.svg", svg.encode())
