"""Table 4: downstream scores of each arm beside those of sync."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.report.paper import reported_scores
from analysis.statistics.downstream import CHECKPOINTS, downstream
from analysis.table.answers import MEASURES

KEYS = ["optimizer", "setting", "arm", "task", "n", "questions", "of"]
NOTE = (
    "accuracy: lm-eval's acc; accuracy_norm: its acc_norm; bits_per_byte, margin, share: of the "
    "right answer, which see more than accuracy in a small model. Differences to sync [95 % "
    "interval over n seeds and the questions, two-way crossed]; detectable: the difference in "
    "accuracy that it would show with a probability of 80 %."
)
ONE_SEED = (
    f" {CHECKPOINTS.capitalize()}: of one seed; its interval is over questions alone, and says of "
    "these two models, not of the arms, which of them scores higher; p: McNemar's exact test."
)


def table4(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    """One row per optimizer, point, arm and task; empty without answers."""
    found = downstream(trials)
    groups = found.groupby([*KEYS, "point", "num_stages", "num_microbatches"], sort=False)
    rows = [
        {
            **dict(zip(KEYS, key, strict=False)),
            **_scores(of_task),
            **reported_scores(scale, str(of_task["task"].iloc[0])),
        }
        for key, of_task in groups
    ]
    table = pd.DataFrame(rows)
    constant = [name for name in ("setting", "p") if name in table and table[name].nunique() <= 1]
    return table.drop(columns=constant)


def _scores(rows: pd.DataFrame) -> dict[str, Any]:
    """Of each measure sync's score and the difference, and more of accuracy."""
    by_measure: dict[Any, dict[Any, Any]] = rows.set_index("measure").to_dict("index")
    found: dict[str, Any] = {}
    for measure in MEASURES:
        of, name = by_measure[measure], f"{measure} difference"
        found |= {f"{measure} sync": of["sync"], name: of["difference"]}
        found |= {f"{name}_low": of["low"], f"{name}_high": of["high"]}
    accuracy = by_measure["accuracy"]
    return found | {"detectable": accuracy["detectable"], "p": accuracy["p"]}
