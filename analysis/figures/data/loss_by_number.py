"""Final losses and gaps against a number: over horizons (figure 5), by size (figure 16)."""

from __future__ import annotations

import pandas as pd

from analysis.figures.data.means import with_means
from analysis.figures.data.paired_seeds import paired_seeds
from analysis.figures.data.panels import MEAN, OF_SEED, PANEL, SERIES
from analysis.figures.data.swept import results_along
from analysis.table import names

COLUMNS = [
    *(*PANEL, "key", "value", *SERIES, "num_parameters", "loss", "gap"),
    *(*OF_SEED, *MEAN),
]
"""One row per trial with its `loss`, and one with its `gap` where sync completed; MEAN is of
that."""
KEYS = [*PANEL, "series", "value"]


def over_horizons(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Against the tokens that a run trains on: one panel per optimizer, one line per arm."""
    # A trial that diverged has trained on fewer tokens than its point asks for.
    planned = trials.assign(tokens=trials.groupby("point")["tokens"].transform("max"))
    found = results_along(planned, ["tokens"])
    return _rows(found.assign(key="tokens", value=found["tokens"]), trials, gaps)


def by_size(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Against the learning rate: one panel per optimizer, one line per size and arm."""
    found = results_along(trials, ["optimizer.lr", "num_parameters"], part_of="model")
    if found.empty:
        return pd.DataFrame(columns=COLUMNS)
    series = found["num_parameters"].map(names.parameters) + " " + found["series"].astype(str)
    found = found.assign(key="optimizer.lr", value=found["optimizer.lr"], series=series)
    return _rows(found, trials, gaps)


def _rows(found: pd.DataFrame, trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    if found.empty:
        return pd.DataFrame(columns=COLUMNS)
    losses = with_means(found.assign(loss=found["final_val_loss"]), "loss", KEYS)
    of_gaps = found.merge(paired_seeds(trials, gaps)[["trial_id", "gap", *MEAN]], on="trial_id")
    parts = [part.reindex(columns=COLUMNS) for part in (losses, of_gaps) if len(part)]
    table = pd.concat([part.astype({"loss": float, "gap": float}) for part in parts])
    return table.sort_values([*KEYS, "seed"], kind="stable", ignore_index=True)
