"""Where synchronous runs at `tiny` stand beside the delayed limit, and what the delay then cost."""

from __future__ import annotations

import pandas as pd

from analysis.table.names import optimizer as name
from analysis.theory.score import rank_correlation
from bench.documents.cells import gap, table
from bench.documents.published import DOCS, of_sweep
from bench.documents.theory import with_interval


def _measured() -> pd.DataFrame:
    """One row per measurement, with `share`: k over the limit of a delay of 1."""
    found = pd.read_csv(DOCS / "sharpness.csv")
    return found.assign(share=found["k"] / found["delayed"])


def _gaps() -> pd.DataFrame:
    found = of_sweep("shared_rate", "long").gaps
    return found[found["arm"] == "delay"].set_index("optimizer")


def shares() -> str:
    """k over the delayed limit along each run, mean over seeds, by the largest of a run."""
    found, gaps = _measured(), _gaps()
    along = found.groupby(["optimizer", "num_updates"])["share"].mean().unstack()
    seeds = found.groupby("optimizer")["seed"].nunique()
    most = _sharpest()
    rows = [
        [
            name(optimizer),
            *(f"{share:.2f}" for share in along.loc[optimizer]),
            f"{most[optimizer]:.2f} (n={seeds[optimizer]})",
            gap(gaps.loc[optimizer].to_dict()),
        ]
        for optimizer in most.index
    ]
    updates = [f"{value:,}" for value in along.columns]
    return table(["updates", *updates, "largest", "gap of the delay"], rows)


def _sharpest() -> pd.Series:
    """By optimizer the largest share along a run, mean over seeds, ascending."""
    runs = _measured().groupby(["optimizer", "seed"])["share"].max()
    return runs.groupby("optimizer").mean().sort_values()


def rank() -> str:
    """How well the largest share ranks the gaps."""
    most = _sharpest()
    gaps = _gaps().loc[most.index, "gap"]
    found = rank_correlation(most.tolist(), gaps.tolist())
    return (
        f"The largest share ranks the gaps of these {found.n} optimizers with Spearman's ρ = "
        f"{with_interval(found)}, p = {found.p:.2g}."
    )
