"""How far the delayed update is from the fresh one over training (the paper's figures 17, 18).

And how much a correction changes the gradient: where it hardly does, it cannot help. Of mixtures of
experts, how many choices a delay makes stale, and how unequal the loads are.
"""

from __future__ import annotations

from itertools import compress

import pandas as pd

from analysis.figures.rows import shown_results
from analysis.figures.over_training import COLUMNS, over_tokens
from analysis.statistics.spikes import spikes
from analysis.table.load import diagnostics

MEASURED = {
    "update_cosine": "cosine of delayed and fresh update",
    "update_error": "relative error of the delayed update",
    "gradient_change": "relative change of the gradient",
    "changed_share": "share of experts that the newest weights would not choose",
    "greatest_load": "load of the busiest expert over the mean",
}
"""Diagnostics that have a figure → what they are."""
OF_ROUTING = ("changed_share", "greatest_load")
"""Those that only mixtures of experts have; the others are of the whole model."""
BEFORE, AFTER = 0.05, 0.15
"""Shares of the run around the switch to a delay that figures zoom in on."""


def data(trials: pd.DataFrame, gaps: pd.DataFrame, name: str) -> pd.DataFrame:
    """One row per measurement: `tokens` trained on and `name`; empty if no trial measured it.

    Trials that only ever measured 0 are left out: they have no delay, or no correction of the
    gradient.
    """
    shown = shown_results(trials, gaps)
    group = "routing" if name in OF_ROUTING else "all"
    curves = [diagnostics(folder, group, name) for folder in shown.get("folder", [])]
    measured = [not (curve[name] == 0).all() for curve in curves]  # nor if it is empty
    if not any(measured):
        return pd.DataFrame(columns=COLUMNS)
    return over_tokens([*compress(curves, measured)], shown[measured])


def from_switch(trials: pd.DataFrame, gaps: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows of `data` of trials with a synchronous start; `from_switch`: updates since the first
    one with a delay, `share`: the same as a share of the trial's updates."""
    found = data(trials, gaps, name)
    switches = spikes(trials).set_index("trial_id")["switch"]
    found = found[found["trial_id"].isin(switches.index)]
    asked = trials.drop_duplicates("trial_id").set_index("trial_id")["num_updates"]
    since = found.get("update", pd.Series(dtype=int)) - found["trial_id"].map(switches)
    return found.assign(from_switch=since, share=since / found["trial_id"].map(asked))
