"""Downstream scores of each arm minus sync's, task by task."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from analysis.figures.data.panels import PANEL, lines, with_variant
from analysis.statistics.downstream import downstream
from analysis.table import names
from analysis.table.answers import ACCURACY, BITS, title

SHOWN = {
    ACCURACY: "accuracy: more is better",
    BITS: "bits per byte of right answers: less is better",
}
"""Measures, and what a panel says of them."""
COLUMNS = [
    *(*PANEL, "measure", "task", "questions", "optimizer", "series", "arm", "setting"),
    *("n", "mean", "low", "high", "of"),
]


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """One row per optimizer, point, arm and task, for accuracy and for bits; empty without answers.

    `mean`, `low`, `high`: the difference to sync over `n` seeds and all `questions`, and its
    interval; of one seed (`of` is two checkpoints) over questions alone.
    """
    return of_scores(downstream(trials), names.arms(trials))


def of_scores(scores: pd.DataFrame, arms: Mapping[str, str]) -> pd.DataFrame:
    """The same of a table of `downstream`; `arms`: their names."""
    found = scores[scores["measure"].isin([*SHOWN])].reset_index(drop=True)
    if found.empty:
        return pd.DataFrame(columns=COLUMNS)
    optimizers = found["optimizer"].map(names.optimizer)
    table = found.assign(
        panel=optimizers,
        subtitle=[
            lines([str(SHOWN[measure]), str(setting)])
            for measure, setting in zip(found["measure"], found["setting"], strict=True)
        ],
        series=with_variant(found, found["arm"].map(arms)),
        mean=found["difference"],
        task=found["task"].map(title),
    )
    return table[COLUMNS].sort_values(["panel", "measure"], kind="stable", ignore_index=True)
