"""The speed-up of a pipeline without a flush over its stages and microbatches, against the tax."""

from __future__ import annotations

from functools import cache

import pandas as pd

from analysis.advice.speed import equal_stages, speed_up
from analysis.figures.data.panels import PANEL
from analysis.figures.data.token_tax import AS_MEAN, own_taxes
from analysis.statistics.tax import MAIN_ARMS
from analysis.table import names

STAGES = (2, 4, 8, 16)
MICROBATCHES = (4, 8, 16, 32, 64)
FLUSHED = "1F1B"
SPEED_UP, TAX = "speed-up", "tax"
COLUMNS = [*PANEL, "kind", "series", "arm", "setting", "stages", "microbatches", *AS_MEAN.values()]


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """For each optimizer with a tax, rows of the `kind` SPEED_UP, one per number of stages and of
    microbatches, and rows of the kind TAX, one for the delay and one with Error Feedback, each at
    its `best_taxes`.

    `mean` is the speed-up of 2BW over 1F1B, simulated with `equal_stages`, or the tax.
    """
    own = own_taxes(gaps)
    own = own[own["arm"].isin(MAIN_ARMS)]
    panels = []
    for optimizer, rows in own.groupby("optimizer"):
        panel = pd.concat([_speed_ups(), rows.assign(kind=TAX)])
        panel = panel.assign(panel=names.optimizer(optimizer), subtitle="")
        panels.append(panel.reindex(columns=COLUMNS))
    return pd.concat(panels, ignore_index=True) if panels else pd.DataFrame(columns=COLUMNS)


@cache
def _speed_ups() -> pd.DataFrame:
    """With at least as many microbatches as stages, which fill the pipeline."""
    return pd.DataFrame(
        {
            "kind": SPEED_UP,
            "series": f"p = {stages}",
            "stages": stages,
            "microbatches": microbatches,
            "mean": speed_up(FLUSHED, equal_stages(stages), microbatches),
        }
        for stages in STAGES
        for microbatches in MICROBATCHES
        if microbatches >= stages
    )
