"""The figures in docs/, drawn from the trials published there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pandas as pd

from analysis.figures import BY_NAME
from analysis.figures.figure import Plot, Spec, plot, whole
from analysis.figures.files import picture
from analysis.figures.fonts import with_font
from analysis.figures.scores import of_scores
from analysis.table.names import REPORTED_ARMS
from bench.documents import others
from bench.documents.published import (
    DOCS,
    FRONT,
    LENGTHS,
    LONG,
    SWEEPS,
    View,
    of_sweep,
    published_scores,
    view,
)
from trainer.base.atomic import write_atomically


def _downstream() -> pd.DataFrame:
    """The published scores, model by model."""
    scores = published_scores()
    return of_scores(scores.assign(setting=scores["model"]), REPORTED_ARMS)


TRIALS: Mapping[str, tuple[str, Callable[[], View]]] = {
    "final_losses": ("final_losses", partial(view, FRONT)),
    "two_regimes": ("final_losses", partial(view, SWEEPS["main"], FRONT)),
    "regimes": ("final_losses", partial(view, SWEEPS["main"], LONG["shared_rate"])),
    "optimizers": ("fig02_optimizers", partial(of_sweep, "synchronous_start")),
    "gradient_feedback": ("final_losses", partial(of_sweep, "gradient_feedback")),
    "taylor": ("fig14_taylor", partial(of_sweep, "taylor")),
    "momentum": ("fig04_momentum", partial(of_sweep, "momentum")),
    "coefficient": ("fig15_coefficient", partial(of_sweep, "coefficient")),
    "batch_size": ("fig13_batch_size", partial(of_sweep, "batch_size")),
    "moe_horizon": ("fig05b_moe_horizon", partial(of_sweep, "moe_horizon")),
    "moe_learning_rate": ("fig16b_moe_learning_rate", partial(of_sweep, "moe_learning_rate")),
    "token_tax": ("token_tax", partial(view, LENGTHS)),
    "break_even": ("break_even", partial(view, LENGTHS)),
}
"""SVG in docs/ → the figure of the report, and the trials that it shows. A CSV has no curves, and
so no figure over training is among them."""


def _shown(name: str) -> Plot:
    figure_name, shown = TRIALS[name]
    figure = BY_NAME[figure_name]
    return plot(figure, figure.data(*shown()))


PICTURES: Mapping[str, Callable[[], Plot]] = {
    **{name: partial(_shown, name) for name in TRIALS},
    "downstream": lambda: plot(BY_NAME["downstream"], _downstream()),
    "forecast": others.longest,
}
"""SVG in docs/ → what draws it."""


def pictured(name: str) -> Spec:
    """The specification of one of PICTURES."""
    return whole(PICTURES[name]())


def write() -> None:
    """Writes all of them."""
    for name in PICTURES:
        svg = with_font(picture(pictured(name)))
        write_atomically(DOCS / f"{name}.svg", svg.encode())
