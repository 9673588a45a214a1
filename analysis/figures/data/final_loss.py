"""Final validation loss and gap of every arm: of each optimizer, or of each value of a key."""

from __future__ import annotations

import pandas as pd

from analysis.figures.data.means import with_means
from analysis.figures.data.paired_seeds import paired_seeds
from analysis.figures.data.panels import MEAN, OF_SEED, PANEL, SERIES
from analysis.figures.rows import shown_results
from analysis.figures.swept import results_along
from analysis.table import names
from analysis.table.tasks import updates_asked

LOSS, GAP = "loss", "gap"
COLUMNS = [*PANEL, "quantity", "group", *SERIES, "setting", "of_seed", *OF_SEED, *MEAN]
"""One row per trial and `quantity`, which is LOSS or GAP; its value is `of_seed`, in nats per
token, and MEAN is over the seeds of its arm in its `group`."""
OF_MEAN = [*PANEL, "group", "series"]


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Rows of COLUMNS of the trials that are shown; a `group` is an optimizer.

    There is one panel per size of the model and data.
    """
    shown = shown_results(trials, gaps)
    if shown.empty:
        return pd.DataFrame(columns=COLUMNS)
    shown["group"] = shown["optimizer"].map(names.optimizer)
    shown["setting"], shown["subtitle"] = shown["subtitle"], ""
    shown["panel"] = _comparable(shown)
    return _rows(shown, trials, gaps)


def _comparable(shown: pd.DataFrame) -> pd.Series:
    """Losses of models of several sizes, or on several data, are in panels of their own.

    A panel also says how many updates its trials make, if all make as many.
    """
    panels = pd.Series("", index=shown.index)
    if shown["num_parameters"].nunique() > 1:
        updates = updates_asked(shown).groupby(shown["num_parameters"], dropna=False)
        sizes = shown["num_parameters"].map(names.parameters) + " parameters"
        panels = sizes + updates.transform(_length)
    if shown["data_hash"].nunique() > 1:
        panels = (panels + ", " + shown["data"].astype(str)).str.removeprefix(", ")
    return panels


def _length(updates: pd.Series) -> str:
    known = updates.dropna().unique()
    return f", {known[0]:,} updates" if len(known) == 1 else ""


def by_value(trials: pd.DataFrame, gaps: pd.DataFrame, key: str) -> pd.DataFrame:
    """Likewise, with one panel per optimizer; a `group` is a value of `key`, from the smallest on,
    and `none` where it is null."""
    found = results_along(trials, [key], part_of=key)
    found["group"] = found[key].map(names.value)
    return _rows(found.assign(setting=""), trials, gaps)


def _rows(shown: pd.DataFrame, trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    if shown.empty:
        return pd.DataFrame(columns=COLUMNS)
    losses = shown.assign(quantity=LOSS, of_seed=shown["final_val_loss"])
    paired = paired_seeds(trials, gaps)[["trial_id", "gap", *MEAN]]
    of_gaps = shown.merge(paired, on="trial_id").assign(quantity=GAP)
    of_gaps["of_seed"] = of_gaps.pop("gap")
    losses = with_means(losses, "of_seed", OF_MEAN)
    return pd.concat([of_gaps[COLUMNS], losses[COLUMNS]], ignore_index=True)
