"""The gap against the coefficient of a correction, with the uncorrected delay as reference."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.figures.data.paired_seeds import COLUMNS, IN_PANEL, paired_seeds
from analysis.figures.data.panels import with_variant
from analysis.table import names

OF_TRIAL = ["method", "family", "coefficient"]


def data(trials: pd.DataFrame, gaps: pd.DataFrame, correction: str | None = None) -> pd.DataFrame:
    """One row per seed, see `paired_seeds.COLUMNS`; rows of arms without correction have no value.

    There is one panel per optimizer, point and correction that has several coefficients; of
    `correction` alone if it is given.
    """
    found = paired_seeds(trials, gaps)
    own = trials.drop_duplicates("trial_id").set_index("trial_id")[OF_TRIAL]
    found[OF_TRIAL] = own.loc[found["trial_id"]].to_numpy()
    found["value"] = found["coefficient"].astype(float)
    found["key"] = "correction.coefficient"
    if correction is not None:
        found = found[found["method"].isin([correction, "none"])]
    panels = [panel.sort_values(IN_PANEL) for panel in _panels(found, trials)]
    if not panels:
        return pd.DataFrame(columns=COLUMNS)
    return pd.concat(panels, ignore_index=True).reindex(columns=COLUMNS)


def _panels(found: pd.DataFrame, trials: pd.DataFrame) -> Iterator[pd.DataFrame]:
    words, families = names.settings(trials), names.families(trials)
    with_value = found.dropna(subset="value")
    for key, group in with_value.groupby(["optimizer", "point", "method"]):
        optimizer, point, method = map(str, key)
        if group["value"].nunique() > 1:
            lines = group.assign(series=with_variant(group, group["family"].map(families)))
            plain = found[
                (found["optimizer"] == optimizer)
                & (found["point"] == point)
                & found["arm"].isin(group["base_arm"])
            ]
            yield pd.concat([lines, plain.assign(value=np.nan)]).assign(
                panel=f"{names.optimizer(optimizer)}, {names.CORRECTIONS.get(method, method)}",
                subtitle=words[point],
            )
