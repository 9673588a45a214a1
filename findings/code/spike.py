"""The table and the verdicts about the spike after a synchronous start, in docs/findings.md."""

from __future__ import annotations

import pandas as pd

from analysis.claims.claim import Claim
from analysis.claims.measure import with_key
from analysis.claims.switches import spike, spike_by_decay
from analysis.table.names import optimizer as name
from bench.documents.cells import mean, table
from bench.documents.published import DOCS, of_sweep

DECAY = "optimizer.variance_decay"
START = "delay+start(0.5)"
BY_HEIGHT = {"spike": spike, "spike_by_decay": spike_by_decay}
"""The claims that compare heights, which lie beside the published trials."""


def by_published(claim: Claim, scale: str) -> Claim:
    """The claim, on the published heights if it compares some."""
    compare = BY_HEIGHT.get(claim.name)
    if compare is None:
        return claim
    return claim._replace(compare=lambda trials: compare(trials, _heights(trials, scale)))


def spikes(scale: str) -> str:
    """The height of each spike by β2, and what the synchronous start changes in the end."""
    trials = of_sweep("spike", scale).trials
    losses = trials.pivot_table(
        index="seed", columns=["optimizer", DECAY, "arm"], values="final_val_loss"
    )
    rows = []
    for optimizer, of in with_key(trials, _heights(trials, scale), DECAY).groupby("optimizer"):
        heights = of.pivot_table(index="seed", columns=DECAY, values="height")
        for value, group in of.groupby(DECAY):
            saved = losses[optimizer, value, START] - losses[optimizer, value, "delay"]
            gone = f"{group['recovery'].notna().sum()} of {len(group)}"
            said = [name(optimizer), f"{value:g}", mean(heights[value])]
            rows.append([*said, gone, mean(saved), str(len(group))])
        ends = heights.iloc[:, -1] - heights.iloc[:, 0]
        rows.append([name(optimizer), "largest minus smallest", mean(ends), "", "", str(len(ends))])
    heads = ["optimizer", "β2", "height of the spike", "gone before the end"]
    return table([*heads, "final loss: start minus none, paired", "n"], rows)


def _heights(trials: pd.DataFrame, scale: str) -> pd.DataFrame:
    """The published rows of `analysis.statistics.spikes`, with the points of their trials."""
    found = pd.read_csv(DOCS / f"spikes_{scale}.csv")
    return found.merge(trials[["trial_id", "point"]], on="trial_id")
