"""Gaps and final losses against a number that was swept: data that `lines` draws."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from pipegap.analysis.figures.rows import (
    IN_PANEL,
    MEAN,
    OF_GAPS,
    OF_SEED,
    PANEL,
    SERIES,
    distinct,
    groups,
    lines,
    paired_seeds,
    results_along,
    with_means,
    with_variant,
)
from pipegap.analysis.table import names
from pipegap.analysis.table.points import varied

CORRECTION = ["method", "family", "coefficient"]
LOSSES = [*PANEL, "key", "value", *SERIES, "size", "loss", "gap", *OF_SEED, *MEAN]
"""One row per trial with its `loss`, and one with its `gap` where sync completed; MEAN is of
that number. `size` orders several series of one arm: parameters of the model, or tokens."""
UNITS = {"num_parameters": "", "tokens": " tokens"}
"""Columns that order the series of an arm → the unit of their values."""
KEYS = [*PANEL, "series", "value"]


def gaps_by_key(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return rows of OF_GAPS: one panel per optimizer and swept number, one series per arm.

    A panel holds the points that differ in its key alone, and in keys that follow from it. The
    subtitle names a tuned learning rate that follows, and leaves out the number of updates that
    goes with a batch size. The table is empty if no number was swept.
    """
    paired = paired_seeds(trials, gaps)
    panels = [
        paired.merge(panel, left_on="point", right_index=True)
        .assign(panel=names.optimizer(optimizer))
        .sort_values(IN_PANEL)
        for optimizer, points in varied(trials).items()
        for panel in _panels_of_keys(points[points.index.isin(paired["point"])])
    ]
    return _joined(panels)


def _joined(panels: list[pd.DataFrame]) -> pd.DataFrame:
    if not panels:
        return pd.DataFrame(columns=OF_GAPS)
    return pd.concat(panels, ignore_index=True).reindex(columns=OF_GAPS)


def _panels_of_keys(points: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the points (the index) of each panel with `subtitle`, `key` and `value`."""
    for key in distinct(points):
        if not is_numeric_dtype(points[key]) or is_bool_dtype(points[key]):
            continue
        for subtitle, group in groups(points, [key]):
            shown = group.dropna(subset=key)
            if shown[key].nunique() > 1:
                without = f"without {names.key(key)}: not shown" if len(shown) < len(group) else ""
                values = shown[key].astype(float)
                title = lines([subtitle, without])
                yield pd.DataFrame({"subtitle": title, "key": key, "value": values})


def gaps_by_coefficient(
    trials: pd.DataFrame, gaps: pd.DataFrame, correction: str | None = None
) -> pd.DataFrame:
    """Return rows of OF_GAPS: one panel per optimizer, point and correction with several values.

    Rows of arms without correction have no value. With `correction`, that one alone is shown.
    """
    paired = paired_seeds(trials, gaps).assign(key="correction.coefficient")
    own = trials.drop_duplicates("trial_id").set_index("trial_id")[CORRECTION]
    paired[CORRECTION] = own.loc[paired["trial_id"]].to_numpy()
    paired["value"] = paired["coefficient"].astype(float)
    if correction is not None:
        paired = paired[paired["method"].isin([correction, "none"])]
    return _joined([panel.sort_values(IN_PANEL) for panel in _panels_of_methods(paired, trials)])


def _panels_of_methods(paired: pd.DataFrame, trials: pd.DataFrame) -> Iterator[pd.DataFrame]:
    settings, families = names.settings(trials), names.families(trials)
    with_value = paired.dropna(subset="value")
    for key, group in with_value.groupby(["optimizer", "point", "method"]):
        optimizer, point, method = map(str, key)
        if group["value"].nunique() > 1:
            corrected = group.assign(series=with_variant(group, group["family"].map(families)))
            plain = paired[
                (paired["optimizer"] == optimizer)
                & (paired["point"] == point)
                & paired["arm"].isin(group["base_arm"])
            ]
            yield pd.concat([corrected, plain.assign(value=np.nan)]).assign(
                panel=f"{names.optimizer(optimizer)}, {names.CORRECTIONS.get(method, method)}",
                subtitle=settings[point],
            )


def gaps_by_delay(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return rows of OF_GAPS against the delay τ: one panel per optimizer and point, one series per
    correction.

    A series has several delays. Pipelines whose stages are not equally late have none: their series
    are named by their stages.
    """
    paired = paired_seeds(trials, gaps)
    if paired.empty:
        return _joined([])
    own = trials.drop_duplicates("trial_id").set_index("trial_id")
    late = paired.assign(
        key="pipeline.delay",
        value=own.loc[paired["trial_id"], "delay"].to_numpy(dtype=float),
        series=paired["series"].str.replace(r"^delay( of \d+)?", "delay of τ", regex=True),
        panel=paired["optimizer"].map(names.optimizer),
        subtitle=paired["point"].map(names.settings(trials)),
    )
    delays = late.groupby(["point", "series"])["value"].transform("nunique")
    return _joined([late[delays > 1].sort_values([*PANEL, *IN_PANEL])])


def optimizers_by_momentum(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return rows of OF_GAPS against momentum (figure 4): a panel per arm, a line per optimizer."""
    table = gaps_by_key(trials, gaps)
    table = table[table["key"] == "optimizer.momentum"]
    return _with_optimizers(table, table["series"])


def optimizers_by_coefficient(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return rows of OF_GAPS against λ (figure 15): one panel per kind of Error Feedback.

    The series are optimizers. The plain delay has coefficient 0.
    """
    table = gaps_by_coefficient(trials, gaps, correction="error_feedback")
    plain = table["value"].isna()
    kinds = [
        _with_optimizers(table[plain | (table["series"] == kind)].fillna({"value": 0.0}), kind)
        for kind in table.loc[~plain, "series"].unique()
    ]
    return pd.concat(kinds, ignore_index=True) if kinds else table


def _with_optimizers(table: pd.DataFrame, panel: pd.Series | str) -> pd.DataFrame:
    """`subtitle` stays: what the points of a panel have in common beside their optimizer."""
    return table.assign(panel=panel, series=table["optimizer"].map(names.optimizer))


def losses_along(
    trials: pd.DataFrame, gaps: pd.DataFrame, key: str, size: str = "", part_of: str = ""
) -> pd.DataFrame:
    """Return rows of LOSSES against `key`: one series per arm, and per value of the column `size`.

    Tokens are those that a point asks for; a diverged trial has fewer.
    """
    planned = trials.assign(tokens=trials.groupby("point")["tokens"].transform("max"))
    rows = results_along(planned, [key, size] if size else [key], part_of)
    if size and len(rows):
        sizes = rows[size].map(names.parameters) + UNITS[size]
        rows = rows.assign(series=sizes + " " + rows["series"].astype(str), size=rows[size])
    return _losses(rows.assign(key=key, value=rows[key]), trials, gaps)


def _losses(rows: pd.DataFrame, trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    if rows.empty:
        return pd.DataFrame(columns=LOSSES)
    losses = with_means(rows.assign(loss=rows["final_val_loss"]), "loss", KEYS)
    of_gaps = rows.merge(paired_seeds(trials, gaps)[["trial_id", "gap", *MEAN]], on="trial_id")
    parts = [part.reindex(columns=LOSSES) for part in (losses, of_gaps) if len(part)]
    table = pd.concat([part.astype({"loss": float, "gap": float}) for part in parts])
    return table.sort_values([*KEYS, "seed"], kind="stable", ignore_index=True)
