"""Which trials a figure with a panel an optimizer shows, and what it calls them."""

from __future__ import annotations

import pandas as pd

from analysis.pairs import VARIANT, results
from analysis.points import settings

PANEL = ["optimizer", "num_parameters", "data_hash"]
"""Losses of other models or data are never in one panel."""


def shown_results(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """The trials of the best point of each panel, with columns `panel` (its title) and `series`.

    Best is the lowest mean sync loss among points that have a pair, or among all if none has one.
    The title says so where there were several. `series` is the arm, with its stages and
    microbatches where the point has it with several.
    """
    done = results(trials)
    done["has_pair"] = done["point"].isin(gaps.loc[gaps["pairs"] > 0, "point"])
    chosen = [_best(group) for _, group in done.groupby(PANEL, dropna=False)]
    if not chosen:
        return done.assign(panel="", series="")
    shown = pd.concat(chosen)
    shown["panel"] = _titles(shown, settings(trials))
    shown["series"] = _series(shown)
    return shown


def _best(group: pd.DataFrame) -> pd.DataFrame:
    sync = group.loc[group["arm"] == "sync"].groupby("point")["final_val_loss"].mean()
    ranked = group.drop_duplicates("point").set_index("point")
    ranked = ranked.assign(loss_sync=sync).sort_values(
        ["has_pair", "loss_sync"], ascending=[False, True], kind="stable"
    )
    return group[group["point"] == ranked.index[0]].assign(num_points=len(ranked))


def _titles(shown: pd.DataFrame, words: dict[str, str]) -> list[str]:
    """What tells one panel from another, then which of its points is shown."""
    several = shown["num_parameters"].nunique() > 1
    return [
        optimizer
        + (f", {num_parameters / 1e6:.3g}M parameters" if several else "")
        + (f"\n{words[point]}: best sync of {num_points}" if num_points > 1 else "")
        for optimizer, num_parameters, point, num_points in shown[
            ["optimizer", "num_parameters", "point", "num_points"]
        ].itertuples(index=False)
    ]


def _series(shown: pd.DataFrame) -> list[str]:
    variants = shown.groupby(["point", "arm"])[VARIANT].nunique().max(axis=1)
    return [
        arm if variants[point, arm] == 1 else f"{arm} p={p} m={m}"
        for point, arm, p, m in shown[["point", "arm", *VARIANT]].itertuples(index=False)
    ]
