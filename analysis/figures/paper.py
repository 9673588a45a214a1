"""The figures of arXiv 2606.30634, each of the sweeps that measure it."""

from functools import partial

from analysis.figures import by_number, curves, diagnostics, heatmaps, lines, over_training, spike
from analysis.figures.curves import VALIDATION
from analysis.figures.dots import BY_OPTIMIZER, CAPTION, by_value, value_rows
from analysis.figures.figure import Figure
from analysis.figures.lines import GAPS, LOSSES
from analysis.figures.style import optimizer_styles, size_styles
from analysis.table import names

TABLES = ("optimizers", "synchronous_start")
SWEPT = (
    (7, "learning_rate", "the peak learning rate", "optimizer.lr"),
    (8, "weight_decay", "weight decay", "optimizer.weight_decay"),
    (9, "warmup", "the share of warm-up", "lr_schedule.warmup"),
    (10, "clip", "the clipping threshold", "clip_norm"),
    (11, "lr_schedule", "the learning-rate schedule", "lr_schedule"),
    (12, "variance_decay", "β₂", "optimizer.variance_decay"),
)
"""Number of the figure, sweep, what it sweeps in words, and its key."""
STALENESS = (
    ("fig17_update_cosine", "Cosine of late and fresh update", "update_cosine", "figure 17"),
    ("fig18_update_error", "Relative error of the late update", "update_error", "figure 18"),
)

BY_OPTIMIZERS = GAPS._replace(charts=partial(lines.of_gap, styles=optimizer_styles))
BY_SIZE = LOSSES._replace(charts=partial(lines.of_loss_and_gap, styles=size_styles))

FIGURES = (
    BY_OPTIMIZER._replace(name="fig02_optimizers", source="figure 2 (360M)", sweeps=TABLES),
    VALIDATION._replace(
        name="fig03_curves",
        title="AdamW and Muon over training",
        data=partial(over_training.validation_of, optimizers=("adamw", "muon")),
        source="figure 3 (360M)",
        sweeps=TABLES,
    ),
    BY_OPTIMIZERS._replace(
        name="fig04_momentum",
        title="Gap against momentum",
        data=by_number.optimizers_by_momentum,
        caption=(
            *lines.CAPTION,
            "runs of fewer than 100 / (1 − momentum) updates are shown and decide nothing",
        ),
        source="figure 4 (135M)",
        sweeps=("momentum",),
    ),
    LOSSES._replace(source="figure 5 (2B MoE; here a dense model)", sweeps=("horizon",)),
    LOSSES._replace(
        name="fig05b_moe_horizon",
        title="Final loss of a mixture of experts over horizons",
        source="figure 5 (2B MoE)",
        sweeps=("moe_horizon",),
    ),
    VALIDATION._replace(
        name="fig06_stages",
        title="Synchronous, 2BW and original PipeDream for growing P",
        data=over_training.validation_by_stages,
        source="figure 6 (135M)",
        sweeps=("stages",),
    ),
    *(
        BY_OPTIMIZER._replace(
            name=f"fig{number:02d}_{sweep}",
            title=f"Gap and final loss by {swept}",
            data=partial(by_value, key=key),
            charts=partial(value_rows, title=names.key(key)),
            caption=CAPTION,
            source=f"figure {number} (135M)",
            sweeps=(sweep,),
        )
        for number, sweep, swept, key in SWEPT
    ),
    heatmaps.BATCH_SIZE,
    GAPS._replace(
        name="fig14_taylor",
        title="Gap against the coefficient of the Taylor compensation",
        data=partial(by_number.gaps_by_coefficient, correction="taylor"),
        caption=(*lines.CAPTION, lines.BAND),
        source="figure 14 (135M, Muon)",
        sweeps=("taylor",),
    ),
    BY_OPTIMIZERS._replace(
        name="fig15_coefficient",
        title="Gap against the coefficient of Error Feedback",
        data=by_number.optimizers_by_coefficient,
        caption=(*lines.CAPTION, "at 0: the plain delay"),
        source="figure 15 (135M)",
        sweeps=("coefficient",),
    ),
    BY_SIZE._replace(
        name="fig16_model_size",
        title="Final loss against the learning rate by size of the model",
        data=by_number.losses_by_size,
        source="figure 16 (2B MoE; here dense models)",
        sweeps=("model_size",),
    ),
    BY_SIZE._replace(
        name="fig16b_moe_learning_rate",
        title="Final loss of a mixture of experts against the learning rate by tokens",
        data=by_number.losses_by_budget,
        source="figure 16 (2B MoE)",
        sweeps=("moe_learning_rate",),
    ),
    *(
        Figure(
            name=name,
            title=title,
            data=partial(diagnostics.from_switch, name=diagnostic),
            charts=partial(diagnostics.around_switch, name=diagnostic),
            caption=curves.CAPTION,
            source=f"{source} (135M)",
            sweeps=("staleness",),
            columns=2,
        )
        for name, title, diagnostic, source in STALENESS
    ),
    VALIDATION._replace(
        name="fig19_gradient_feedback",
        title="Error Feedback on raw gradients over training",
        data=over_training.training,
        charts=curves.of_training,
        caption=(*VALIDATION.caption, curves.OF_TRAINING),
        source="figure 19 (135M)",
        sweeps=("gradient_feedback",),
    ),
    spike.SPIKE,
    BY_OPTIMIZER._replace(
        name="figA9_cooldown",
        title="What a synchronous cooldown gives back",
        source="appendix A.9 (135M)",
        sweeps=("cooldown",),
    ),
)
