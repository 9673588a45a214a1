"""The table of the sweep `nesterov`, in docs/findings.md."""

from __future__ import annotations

from analysis.statistics.tax import MAIN_ARMS
from analysis.table.names import REPORTED_ARMS
from analysis.table.names import optimizer as name
from bench.documents.cells import mean, table
from bench.documents.published import of_sweep


def nesterov(scale: str) -> str:
    """Sync's loss and each arm's gap with and without it, and their difference, paired by seed."""
    trials = of_sweep("nesterov", scale).trials
    columns = ["optimizer", "optimizer.nesterov", "arm"]
    losses = trials.pivot_table(index="seed", columns=columns, values="final_val_loss")
    rows = []
    for optimizer in sorted({*losses.columns.get_level_values("optimizer")}):
        ahead, plain = losses[optimizer][True], losses[optimizer][False]
        n = str(len(losses))
        means = [f"{of['sync'].mean():.3f}" for of in (ahead, plain)]
        changed = mean(plain["sync"] - ahead["sync"])
        rows.append([f"{name(optimizer)}: sync loss", *means, changed, n])
        for arm in MAIN_ARMS:
            gaps = [of[arm] - of["sync"] for of in (ahead, plain)]
            said = f"{name(optimizer)}: gap, {REPORTED_ARMS[arm]}"
            rows.append([said, *map(mean, gaps), mean(gaps[1] - gaps[0]), n])
    return table(["", "with Nesterov", "without", "without minus with, paired", "n"], rows)
