"""The figures in docs/, drawn from the trials published there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pandas as pd

from analysis.figures import BY_NAME, Figure
from analysis.figures.data.downstream import of_scores
from analysis.figures.draw.fonts import with_font
from analysis.figures.figure import Spec, plot, whole
from analysis.figures.files import picture
from analysis.table.names import REPORTED_ARMS
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


def _of(shown: Callable[[], View], figure: Figure) -> pd.DataFrame:
    return figure.data(*shown())


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
PICTURES: Mapping[str, tuple[str, Callable[[Figure], pd.DataFrame]]] = {
    **{name: (figure, partial(_of, shown)) for name, (figure, shown) in TRIALS.items()},
    "downstream": ("downstream", lambda figure: _downstream()),
}
"""SVG in docs/ → the figure of the report, and what makes the data that it shows."""


def pictured(name: str) -> Spec:
    """The specification of one of PICTURES."""
    figure_name, data = PICTURES[name]
    figure = BY_NAME[figure_name]
    return whole(plot(figure, data(figure)))


def write() -> None:
    """Writes all of them."""
    for name in PICTURES:
        svg = with_font(picture(pictured(name)))
        write_atomically(DOCS / f"{name}.svg", svg.encode())
