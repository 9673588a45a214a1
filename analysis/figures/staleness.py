"""How far late updates are from fresh ones, with a zoom at the switch (figures 17 and 18)."""

from __future__ import annotations

import altair as alt
import pandas as pd

from analysis.figures import curves, diagnostics
from analysis.figures.figure import Chart
from analysis.figures.marks import renamed
from analysis.spikes import spikes

BEFORE, AFTER = 0.05, 0.15
"""Shares of the run that the zoom shows, before the switch and after it."""
FROM_SWITCH = alt.X("from_switch:Q", title="updates from the switch", scale=alt.Scale(nice=False))


def data(trials: pd.DataFrame, gaps: pd.DataFrame, name: str) -> pd.DataFrame:
    """Rows of `diagnostics.data` of trials with a synchronous start; `from_switch`: updates from
    the first one with a delay, `share`: the same of all updates of the trial."""
    found = diagnostics.data(trials, gaps, name)
    switches = spikes(trials).set_index("trial_id")["switch"]
    found = found[found["trial_id"].isin(switches.index)]
    asked = trials.drop_duplicates("trial_id").set_index("trial_id")["num_updates"]
    from_switch = found.get("update", pd.Series(dtype=int)) - found["trial_id"].map(switches)
    return found.assign(from_switch=from_switch, share=from_switch / found["trial_id"].map(asked))


def charts(data: pd.DataFrame, name: str) -> list[Chart]:
    """Each optimizer over the whole run, and beside that around the switch."""
    y = diagnostics.axis(data, name)
    near = data[data["share"].between(-BEFORE, AFTER)]
    zoomed = near.assign(panel=renamed(near["panel"], ", at the switch"))
    pairs = zip(curves.of_means(data, y), curves.of_means(zoomed, y, FROM_SWITCH), strict=False)
    return [chart for pair in pairs for chart in pair]
