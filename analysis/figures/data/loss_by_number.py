"""Final losses against a number: over horizons (figure 5) and by size of the model (figure 16)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.figures.data.panels import MEAN, OF_SEED, PANEL, SERIES
from analysis.figures.data.swept import results_along
from analysis.statistics.intervals import mean_interval

COLUMNS = [
    *(*PANEL, "key", "value", *SERIES, "num_parameters", "loss"),
    *(*OF_SEED, *MEAN),
]
"""One row per trial. MEAN is that of `loss`; `pairs` counts all trials of the mean."""
KEYS = [*PANEL, "series", "value"]


def over_horizons(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Against the tokens that a run trains on: one panel per optimizer, one line per arm."""
    # A trial that diverged has trained on fewer tokens than its point asks for.
    planned = trials.assign(tokens=trials.groupby("point")["tokens"].transform("max"))
    found = results_along(planned, ["tokens"])
    return _with_means(found.assign(key="tokens", value=found["tokens"]))


def by_size(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Against the learning rate: one panel per optimizer, one line per size and arm."""
    found = results_along(trials, ["optimizer.lr", "num_parameters"], part_of="model")
    sizes = (found["num_parameters"] / 1e6).map("{:.3g}M ".format).astype(str)
    series = sizes + found["series"].astype(str)
    return _with_means(found.assign(key="optimizer.lr", value=found["optimizer.lr"], series=series))


def _with_means(found: pd.DataFrame) -> pd.DataFrame:
    found = found.assign(loss=found["final_val_loss"])
    if found.empty:
        return found.reindex(columns=COLUMNS)
    means = [
        {**dict(zip(KEYS, key, strict=True)), **mean_of(group["loss"])}
        for key, group in found.groupby(KEYS)
    ]
    table = found.merge(pd.DataFrame(means, columns=[*KEYS, *MEAN]), on=KEYS)
    return table.sort_values([*KEYS, "seed"], ignore_index=True)[COLUMNS]


def mean_of(losses: pd.Series) -> dict[str, float]:
    """MEAN of `losses`; those of trials that diverged are missing."""
    known = losses.dropna().to_numpy(dtype=float)
    low, high = mean_interval(known)
    mean = known.mean() if len(known) else np.nan
    counts = len(known), mean, low, high, len(losses) - len(known), len(losses)
    return dict(zip(MEAN, counts, strict=True))
