"""Which trials a figure with one panel per optimizer shows, and what it calls them."""

from __future__ import annotations

import pandas as pd

from analysis.figures.data.panels import with_variant
from analysis.statistics.pairs import results
from analysis.table import names

COMPARABLE = ["optimizer", "num_parameters", "data_hash"]
"""Losses of different models or data are never in one panel."""


def shown_results(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """The trials of the best point of each panel, with columns `panel`, `subtitle` and `series`.

    The best point has the lowest mean sync loss among those that have a pair, or among all if none
    has one. The subtitle says so where there were several. `series` is the name of the arm, with
    its stages and microbatches where the point has several of that arm.
    """
    done = results(trials)
    done["has_pair"] = done["point"].isin(gaps.loc[gaps["pairs"] > 0, "point"])
    chosen = [_best(group) for _, group in done.groupby(COMPARABLE, dropna=False)]
    if not chosen:
        return done.assign(panel="", subtitle="", series="")
    shown = pd.concat(chosen)
    shown["panel"] = _titles(shown)
    shown["subtitle"] = _subtitles(shown, names.settings(trials))
    shown["series"] = with_variant(shown, shown["arm"].map(names.arms(trials)))
    return shown


def _best(group: pd.DataFrame) -> pd.DataFrame:
    sync = group.loc[group["arm"] == "sync"].groupby("point")["final_val_loss"].mean()
    ranked = group.drop_duplicates("point").set_index("point")
    ranked = ranked.assign(loss_sync=sync).sort_values(
        ["has_pair", "loss_sync"], ascending=[False, True], kind="stable"
    )
    return group[group["point"] == ranked.index[0]].assign(num_points=len(ranked))


def _titles(shown: pd.DataFrame) -> pd.Series:
    """What tells one panel from another."""
    optimizers = shown["optimizer"].map(names.optimizer)
    if shown["num_parameters"].nunique() <= 1:
        return optimizers
    return optimizers + ", " + shown["num_parameters"].map(names.parameters) + " parameters"


def _subtitles(shown: pd.DataFrame, words: dict[str, str]) -> list[str]:
    """Which point of the panel is shown, where there were several."""
    return [
        f"{words[point]}: best sync of {num_points}" if num_points > 1 else ""
        for point, num_points in shown[["point", "num_points"]].itertuples(index=False)
    ]
