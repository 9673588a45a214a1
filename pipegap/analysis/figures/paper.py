"""The figures of arXiv 2606.30634, each of the sweeps that measure it."""

from functools import partial
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from pipegap.analysis.figures import curves, dots, lines
from pipegap.analysis.figures.curves import OVER_TRAINING
from pipegap.analysis.figures.dots import BY_OPTIMIZER, CAPTION, DOWNSTREAM, by_value, value_rows
from pipegap.analysis.figures.figure import Chart, Figure
from pipegap.analysis.figures.lines import GAPS, LOSSES, MOST_VALUES
from pipegap.analysis.figures.panels import PANEL
from pipegap.analysis.figures.style import optimizer_styles, size_styles
from pipegap.analysis.table import names

TABLES = ("optimizers", "synchronous_start")
SWEPT = (
    ("07", "learning_rate", "the peak learning rate", "optimizer.lr"),
    ("08", "weight_decay", "weight decay", "optimizer.weight_decay"),
    ("09", "warmup", "the share of warm-up", "lr_schedule.warmup"),
    ("10", "clip", "the clipping threshold", "clip_norm"),
    ("11", "lr_schedule", "the learning-rate schedule", "lr_schedule"),
    ("12", "variance_decay", "β₂", "optimizer.variance_decay"),
)
"""Number of the figure, sweep, what it sweeps in words, and its key."""
STALENESS = (
    ("17", "update_cosine", "Cosine of late and fresh update"),
    ("18", "update_error", "Relative error of the late update"),
)
"""Number of the figure, diagnostic, and title."""
BY_OPTIMIZERS = GAPS._replace(charts=partial(lines.gap_lines, styles=optimizer_styles))
BY_SIZE = LOSSES._replace(charts=partial(lines.loss_and_gap_lines, styles=size_styles))
BY_RATE = partial(lines.losses_along, key="optimizer.lr")


def swept(trials: pd.DataFrame, gaps: pd.DataFrame, key: str) -> pd.DataFrame:
    """Return rows of `by_value`, or rows of `losses_along` if the key has more than MOST_VALUES
    numbers in a panel."""
    is_number = key in trials and is_numeric_dtype(trials[key])
    if is_number and trials[key].nunique() > MOST_VALUES:
        # Of all trials there are many values; a panel may still have few.
        along = lines.losses_along(trials, gaps, key, part_of=key)
        if along.groupby(PANEL)["value"].nunique().max() > MOST_VALUES:
            return along
    return by_value(trials, gaps, key)


def swept_charts(data: pd.DataFrame, title: str) -> list[Chart]:
    """Draw the table of `swept`, of either kind; `title` names the key."""
    return lines.loss_and_gap_lines(data) if "loss" in data else value_rows(data, title)


def _of_paper(base: Figure, number: str, name: str, model: str, **changes: Any) -> Figure:
    """Return `base` as the figure that the paper has of a `model`, by default of the sweep `name`.

    `number` is that of the figure in two digits, and a letter where there are several of it.
    """
    identity = {"name": f"fig{number}_{name}", "source": f"figure {int(number[:2])} ({model})"}
    # `changes` come last: a figure of other sweeps than `name` says so.
    return base._replace(**{**identity, "sweeps": (name,), **changes})


FIGURES = (
    _of_paper(BY_OPTIMIZER, "02", "optimizers", "360M", sweeps=TABLES),
    _of_paper(
        OVER_TRAINING,
        *("03", "curves", "360M"),  # the file's name; the sweeps are those of tables 1 and 2
        title="AdamW and Muon over training",
        data=partial(curves.losses_of, optimizers=("adamw", "muon")),
        sweeps=TABLES,
    ),
    _of_paper(
        BY_OPTIMIZERS,
        *("04", "momentum", "135M"),
        title="Gap against momentum",
        data=lines.optimizers_by_momentum,
        caption=(
            *lines.CAPTION,
            "runs of fewer than 100 / (1 − momentum) updates are shown and decide nothing",
        ),
    ),
    _of_paper(LOSSES, "05", "horizon", "2B MoE; here a dense model"),
    _of_paper(
        LOSSES,
        *("05b", "moe_horizon", "2B MoE"),
        title="Final loss of a mixture of experts over horizons",
    ),
    _of_paper(
        OVER_TRAINING,
        *("06", "stages", "135M"),
        title="Synchronous, 2BW and original PipeDream for growing P",
        data=curves.losses_by_stages,
    ),
    *(
        _of_paper(
            BY_OPTIMIZER,
            *(number, sweep, "135M"),
            title=f"Gap and final loss by {words}",
            data=partial(swept, key=key),
            charts=partial(swept_charts, title=names.key(key)),
            caption=CAPTION,
        )
        for number, sweep, words, key in SWEPT
    ),
    _of_paper(dots.BATCH_SIZE, "13", "batch_size", "135M"),
    _of_paper(
        GAPS,
        *("14", "taylor", "135M, Muon"),
        title="Gap against the coefficient of the Taylor compensation",
        data=partial(lines.gaps_by_coefficient, correction="taylor"),
        caption=(*lines.CAPTION, lines.BAND),
    ),
    _of_paper(
        BY_OPTIMIZERS,
        *("15", "coefficient", "135M"),
        title="Gap against the coefficient of Error Feedback",
        data=lines.optimizers_by_coefficient,
        caption=(*lines.CAPTION, "at 0: the plain delay"),
    ),
    _of_paper(
        BY_SIZE,
        *("16b", "moe_learning_rate", "2B MoE"),
        title="Final loss of a mixture of experts against the learning rate by tokens",
        data=partial(BY_RATE, by_tokens=True),
    ),
    *(
        _of_paper(
            Figure(
                *(name, title),
                data=partial(curves.from_switch, name=name),
                charts=partial(curves.around_switch, name=name),
                caption=curves.CAPTION,
                columns=2,
            ),
            *(number, name, "135M"),
            sweeps=("staleness",),
        )
        for number, name, title in STALENESS
    ),
    _of_paper(
        OVER_TRAINING,
        *("19", "gradient_feedback", "135M"),
        title="Error Feedback on raw gradients over training",
        data=curves.training,
    ),
    _of_paper(curves.SPIKE, "20", "spike", "135M"),
    BY_OPTIMIZER._replace(
        name="figA9_cooldown",
        title="What a synchronous cooldown gives back",
        source="appendix A.9 (135M)",
        sweeps=("cooldown",),
    ),
    DOWNSTREAM,
)
