"""The figures of arXiv 2606.30634, each of the sweeps that measure it."""

from functools import partial

from analysis.figures import (
    bars,
    curves,
    final_loss,
    gap_by_coefficient,
    gap_by_optimizer,
    heatmaps,
    lines,
    loss_by_number,
    spike,
    staleness,
)
from analysis.figures.figure import Figure
from analysis.figures.style import optimizer_styles

TABLES = ("optimizers", "synchronous_start")
BY_VALUE = (
    ("fig07_learning_rate", "the peak learning rate", "optimizer.lr", "figure 7"),
    ("fig08_weight_decay", "weight decay", "optimizer.weight_decay", "figure 8"),
    ("fig09_warmup", "the share of warm-up", "lr_schedule.warmup", "figure 9"),
    ("fig10_clip", "the clipping threshold", "clip_norm", "figure 10"),
    ("fig11_lr_schedule", "the learning-rate schedule", "lr_schedule", "figure 11"),
    ("fig12_variance_decay", "β2", "optimizer.variance_decay", "figure 12"),
)
"""Name (from its sixth letter on that of the sweep), what is swept, its key, its source."""
STALENESS = (
    ("fig17_update_cosine", "Cosine of late and fresh update", "update_cosine", "figure 17"),
    ("fig18_update_error", "Relative error of the late update", "update_error", "figure 18"),
)

PAPER = (
    Figure(
        name="fig02_optimizers",
        title="Final losses of all optimizers",
        data=final_loss.data,
        charts=bars.charts,
        caption=bars.CAPTION,
        source="figure 2 (360M)",
        sweeps=TABLES,
    ),
    Figure(
        name="fig03_curves",
        title="AdamW and Muon over training",
        data=partial(curves.of_optimizers, optimizers=("adamw", "muon")),
        charts=curves.charts,
        caption=curves.CAPTION,
        source="figure 3 (360M)",
        sweeps=TABLES,
    ),
    Figure(
        name="fig04_momentum",
        title="Gap against momentum",
        data=gap_by_optimizer.by_momentum,
        charts=partial(lines.of_gap, styles=optimizer_styles),
        caption=lines.CAPTION,
        source="figure 4 (135M)",
        sweeps=("momentum",),
    ),
    Figure(
        name="fig05_horizon",
        title="Final loss over horizons",
        data=loss_by_number.over_horizons,
        charts=lines.of_loss,
        caption=lines.CAPTION,
        source="figure 5 (2B MoE; here a dense model)",
        sweeps=("horizon",),
    ),
    Figure(
        name="fig06_stages",
        title="Synchronous, 2BW and original PipeDream for growing P",
        data=curves.by_stages,
        charts=curves.charts,
        caption=curves.CAPTION,
        source="figure 6 (135M)",
        sweeps=("stages",),
    ),
    *(
        Figure(
            name=name,
            title=f"Final losses by {swept}",
            data=partial(final_loss.by_value, key=key),
            charts=partial(bars.charts, key=key),
            caption=bars.CAPTION,
            source=f"{source} (135M)",
            sweeps=(name.partition("_")[2],),
        )
        for name, swept, key, source in BY_VALUE
    ),
    Figure(
        name="fig13_batch_size",
        title="Loss and gap by batch size and learning rate",
        data=heatmaps.data,
        charts=heatmaps.charts,
        caption=heatmaps.CAPTION,
        source="figure 13 (135M)",
        sweeps=("batch_size",),
    ),
    Figure(
        name="fig14_taylor",
        title="Gap against the coefficient of the Taylor compensation",
        data=partial(gap_by_coefficient.data, correction="taylor"),
        charts=lines.of_gap,
        caption=(*lines.CAPTION, lines.BAND),
        source="figure 14 (135M, Muon)",
        sweeps=("taylor",),
    ),
    Figure(
        name="fig15_coefficient",
        title="Gap against the coefficient of Error Feedback",
        data=gap_by_optimizer.by_coefficient,
        charts=partial(lines.of_gap, styles=optimizer_styles),
        caption=(*lines.CAPTION, "at 0: the plain delay"),
        source="figure 15 (135M)",
        sweeps=("coefficient",),
    ),
    Figure(
        name="fig16_model_size",
        title="Final loss against the learning rate by size of the model",
        data=loss_by_number.by_size,
        charts=partial(lines.of_loss, styles=loss_by_number.size_styles),
        caption=lines.CAPTION,
        source="figure 16 (2B MoE; here dense models)",
        sweeps=("model_size",),
    ),
    *(
        Figure(
            name=name,
            title=title,
            data=partial(staleness.data, name=diagnostic),
            charts=partial(staleness.charts, name=diagnostic),
            caption=curves.CAPTION,
            source=f"{source} (135M)",
            sweeps=("staleness",),
            columns=2,
        )
        for name, title, diagnostic, source in STALENESS
    ),
    Figure(
        name="fig19_gradient_feedback",
        title="Error Feedback on raw gradients over training",
        data=curves.data,
        charts=curves.charts,
        caption=curves.CAPTION,
        source="figure 19 (135M)",
        sweeps=("gradient_feedback",),
    ),
    Figure(
        name="fig20_spike",
        title="The spike at the switch by β2",
        data=spike.data,
        charts=spike.charts,
        caption=spike.CAPTION,
        source="figure 20 (135M)",
        sweeps=("spike",),
    ),
    Figure(
        name="figA9_cooldown",
        title="Final losses with a synchronous cooldown",
        data=final_loss.data,
        charts=bars.charts,
        caption=bars.CAPTION,
        source="appendix A.9 (135M)",
        sweeps=("cooldown",),
    ),
)
