"""Token taxes that others reported, or that follow from losses that they reported.

`reported_taxes.csv` has them with their source and how each was converted. Where only a gap was
reported, the tax is exp(gap / slope) with a slope that is our estimate, and counts as ESTIMATED.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

REPORTED, ESTIMATED = "reported", "estimated"
PAPER = "paper, 360M"
"""Who reported the losses of tables 1 and 2."""


@cache
def reported_taxes() -> pd.DataFrame:
    """One row per number: `who`, `optimizer`, `arm`, `loss_sync`, `loss`, `slope`, `tax`, `source`,
    `converted`, and `tax_from`, which is REPORTED or ESTIMATED. Losses in nats per token."""
    table = pd.read_csv(Path(__file__).with_name("reported_taxes.csv"))
    from_gap = ((table["loss"] - table["loss_sync"]) / table["slope"]).map(np.exp)
    source = table["tax"].notna().map({True: REPORTED, False: ESTIMATED})
    return table.assign(tax=table["tax"].fillna(from_gap), tax_from=source)


def paper_losses() -> Mapping[str, Mapping[str, float]]:
    """The paper's final losses, by optimizer and arm, sync among them."""
    rows = reported_taxes()[reported_taxes()["who"] == PAPER]
    return {
        str(optimizer): {
            "sync": losses["loss_sync"].iloc[0],
            **dict(zip(losses["arm"], losses["loss"], strict=True)),
        }
        for optimizer, losses in rows.groupby("optimizer", sort=False)
    }
