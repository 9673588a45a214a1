"""Losses and gaps in bf16 beside those in fp32."""

from __future__ import annotations

import pandas as pd

from analysis.statistics.intervals import mean_interval
from analysis.statistics.tax import MAIN_ARMS
from analysis.table.names import REPORTED_ARMS
from analysis.table.names import optimizer as name
from bench.documents.cells import mean, table
from bench.documents.published import of_sweep

DTYPES = ("float32", "bfloat16")


def dtypes() -> str:
    """Sync's loss and each arm's gap in both dtypes, and their difference, paired by seed."""
    columns = ["optimizer", "arm", "dtype"]
    losses = of_sweep("dtype").trials.pivot_table(
        index="seed", columns=columns, values="final_val_loss"
    )
    rows = []
    for optimizer in sorted({*losses.columns.get_level_values("optimizer")}):
        sync = losses[optimizer]["sync"]
        changed = mean(sync["bfloat16"] - sync["float32"])
        means = [f"{sync[of].mean():.3f}" for of in DTYPES]
        rows.append([f"{name(optimizer)}: sync loss", *means, changed, ""])
        for arm in MAIN_ARMS:
            gaps = losses[optimizer][arm] - sync
            changed = mean(gaps["bfloat16"] - gaps["float32"])
            said = f"{name(optimizer)}: gap, {REPORTED_ARMS[arm]}"
            means = [mean(gaps[of]) for of in DTYPES]
            rows.append([said, *means, changed, _stands(gaps["bfloat16"], gaps["float32"])])
    return table(["", *DTYPES, "difference, paired", "may stand for it"], rows)


def _stands(gaps: pd.Series, others: pd.Series) -> str:
    """Whether these gaps may stand for the others, by the rule of the sweep `dtype`."""
    low, high = mean_interval((gaps - others).dropna().to_numpy())
    margin = 0.2 * abs(others.mean())
    if -margin < low and high < margin:
        return "yes"
    return "no" if low > margin or high < -margin else "not enough data"
