"""Final losses against a number: over horizons (figure 5) and by size of the model (figure 16)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from analysis.figures.paired_seeds import OF_GAP
from analysis.figures.style import Style, arm_styles
from analysis.figures.swept import results_along
from analysis.intervals import mean_interval

COLUMNS = ["panel", "key", "value", "series", "seed", "loss", "status", "trial_id", *OF_GAP]
"""A row a trial; `mean` and its interval are those of `loss`, `pairs` all trials of the mean."""
KEYS = ["panel", "series", "value"]
SIZES = ("#88ccee", "#332288", "#cc6677", "#117733", "#ddaa33", "#aa4499")
SEED = 0  # of the bootstrap


def over_horizons(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Against the tokens that a run trains on: a panel an optimizer, a line an arm."""
    # One that diverged had fewer than its point.
    planned = trials.assign(tokens=trials.groupby("point")["tokens"].transform("max"))
    found = results_along(planned, ["tokens"])
    return _with_means(found.assign(key="tokens", value=found["tokens"]))


def by_size(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Against the learning rate: a panel an optimizer, a line an arm and size of the model."""
    found = results_along(trials, ["optimizer.lr", "num_parameters"], part_of="model")
    sizes = [
        f"{size / 1e6:.3g}M {name}" for size, name in found[["num_parameters", "series"]].to_numpy()
    ]
    return _with_means(found.assign(key="optimizer.lr", value=found["optimizer.lr"], series=sizes))


def size_styles(series: Iterable[str]) -> dict[str, Style]:
    """A colour a size, from the smallest on, and the dashes and shapes of the arms."""
    parts = {name: tuple(name.split(" ", 1)) for name in dict.fromkeys(series)}
    sizes = sorted({size for size, _ in parts.values()}, key=lambda size: float(size[:-1]))
    colors = dict(zip(sizes, SIZES, strict=False))
    arms = arm_styles(arm for _, arm in parts.values())
    return {
        f"{size} {arm}": style._replace(color=colors[size])
        for size in sizes
        for arm, style in arms.items()
        if f"{size} {arm}" in parts
    }


def _with_means(found: pd.DataFrame) -> pd.DataFrame:
    found = found.assign(loss=found["final_val_loss"])
    if found.empty:
        return found.reindex(columns=COLUMNS)
    means = [
        {**dict(zip(KEYS, key, strict=True)), **mean_of(group["loss"])}
        for key, group in found.groupby(KEYS)
    ]
    table = found.merge(pd.DataFrame(means, columns=[*KEYS, *OF_GAP]), on=KEYS)
    return table.sort_values([*KEYS, "seed"], ignore_index=True)[COLUMNS]


def mean_of(losses: pd.Series) -> dict[str, float]:
    """`OF_GAP` of losses of which those that diverged are missing."""
    known = losses.dropna().to_numpy(dtype=float)
    low, high = mean_interval(known, np.random.default_rng(SEED))
    mean = known.mean() if len(known) else np.nan
    counts = len(known), mean, low, high, len(losses) - len(known), len(losses)
    return dict(zip(OF_GAP, counts, strict=True))
