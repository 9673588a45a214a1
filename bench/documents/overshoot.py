"""The table of the sweep `overshoot`, in docs/findings.md."""

from __future__ import annotations

from analysis.table.names import optimizer as name
from bench.documents.cells import mean, table
from bench.documents.published import of_sweep

ONE, OTHERS = "delay_ef", ("delay_ef(2)", "delay_ef(4)")
"""The arms of Error Feedback with the coefficients 1, and 2 and 4."""


def overshoot(scale: str) -> str:
    """Each coefficient's gap, and the gap at 1 minus it, paired by seed."""
    trials = of_sweep("overshoot", scale).trials
    losses = trials.pivot_table(index="seed", columns=["optimizer", "arm"], values="final_val_loss")
    rows = []
    for optimizer in sorted({*losses.columns.get_level_values("optimizer")}):
        of = losses[optimizer]
        gaps = [of[arm] - of["sync"] for arm in ("delay", ONE, *OTHERS)]
        saved = [of[ONE] - of[arm] for arm in OTHERS]
        rows.append([name(optimizer), *map(mean, gaps), *map(mean, saved), str(len(of))])
    heads = ["optimizer", "gap of the delay", "λ = 1", "λ = 2", "λ = 4"]
    return table([*heads, "1 minus 2", "1 minus 4", "n"], rows)
