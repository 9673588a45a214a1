"""The gap against the coefficient of a correction, with the uncorrected delay as reference."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.figures.paired_seeds import COLUMNS, IN_PANEL, paired_seeds, with_variant
from analysis.points import settings

KEY = "correction.coefficient"


def data(trials: pd.DataFrame, gaps: pd.DataFrame, correction: str | None = None) -> pd.DataFrame:
    """A row a seed, see `paired_seeds.COLUMNS`; a panel each optimizer, point and correction (or
    that one alone) that has several coefficients. Rows of the arms without it have no `value`."""
    found = paired_seeds(trials, gaps)
    own = trials.drop_duplicates("trial_id").set_index("trial_id")
    of_trial = own.reindex(columns=["correction", "family", KEY]).loc[found["trial_id"]]
    found[["correction", "family", "value"]] = of_trial.to_numpy()
    found["value"] = found["value"].astype(float)
    found["key"] = KEY
    if correction is not None:
        found = found[found["correction"].isin([correction, "none"])]
    panels = [panel.sort_values(IN_PANEL) for panel in _panels(found, settings(trials))]
    if not panels:
        return pd.DataFrame(columns=COLUMNS)
    return pd.concat(panels, ignore_index=True).reindex(columns=COLUMNS)


def _panels(found: pd.DataFrame, words: dict[str, str]) -> Iterator[pd.DataFrame]:
    with_value = found.dropna(subset="value")
    for key, group in with_value.groupby(["optimizer", "point", "correction"]):
        optimizer, point, correction = map(str, key)
        if group["value"].nunique() > 1:
            panel = "\n".join(line for line in (f"{optimizer}, {correction}", words[point]) if line)
            lines = group.assign(series=with_variant(group, group["family"]))
            plain = found[
                (found["optimizer"] == optimizer)
                & (found["point"] == point)
                & found["arm"].isin(group["base_arm"])
            ]
            yield pd.concat([lines, plain.assign(value=np.nan)]).assign(panel=panel)
