"""Final losses and gaps against a number: horizons (figure 5), sizes or budgets (figure 16)."""

from __future__ import annotations

import pandas as pd

from analysis.figures.data.means import with_means
from analysis.figures.data.paired_seeds import paired_seeds
from analysis.figures.data.panels import MEAN, OF_SEED, PANEL, SERIES
from analysis.figures.swept import results_along
from analysis.table import names

COLUMNS = [
    *(*PANEL, "key", "value", *SERIES, "size", "loss", "gap"),
    *(*OF_SEED, *MEAN),
]
"""One row per trial with its `loss`, and one with its `gap` where sync completed; MEAN is of
that. `size` has what orders several series of one arm: parameters of the model, or tokens."""
RATE = "optimizer.lr"
KEYS = [*PANEL, "series", "value"]


def over_horizons(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Against the tokens that a run trains on: one panel per optimizer, one line per arm."""
    found = results_along(_planned(trials), ["tokens"])
    return _rows(found.assign(key="tokens", value=found["tokens"]), trials, gaps)


def by_size(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Against the learning rate: one panel per optimizer, one line per size and arm."""
    found = results_along(trials, [RATE, "num_parameters"], part_of="model")
    return _rows(_by_rate(found, "num_parameters", ""), trials, gaps)


def by_budget(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """The same of one model, one line per number of tokens and arm."""
    found = results_along(_planned(trials), [RATE, "tokens"])
    return _rows(_by_rate(found, "tokens", " tokens"), trials, gaps)


def _planned(trials: pd.DataFrame) -> pd.DataFrame:
    """The trials with the tokens that their point asks for; one that diverged has fewer."""
    return trials.assign(tokens=trials.groupby("point")["tokens"].transform("max"))


def _by_rate(found: pd.DataFrame, size: str, unit: str) -> pd.DataFrame:
    """One series per value of the column `size` and arm, against the learning rate."""
    if found.empty:
        return found
    series = found[size].map(names.parameters) + f"{unit} " + found["series"].astype(str)
    return found.assign(key=RATE, value=found[RATE], series=series, size=found[size])


def _rows(found: pd.DataFrame, trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    if found.empty:
        return pd.DataFrame(columns=COLUMNS)
    losses = with_means(found.assign(loss=found["final_val_loss"]), "loss", KEYS)
    of_gaps = found.merge(paired_seeds(trials, gaps)[["trial_id", "gap", *MEAN]], on="trial_id")
    parts = [part.reindex(columns=COLUMNS) for part in (losses, of_gaps) if len(part)]
    table = pd.concat([part.astype({"loss": float, "gap": float}) for part in parts])
    return table.sort_values([*KEYS, "seed"], kind="stable", ignore_index=True)
