"""Downstream scores of each arm beside those of sync, on the same questions and seeds."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from pipegap.analysis.statistics.crossed import (
    crossed_interval,
    detectable_difference,
    seeds_needed,
)
from pipegap.analysis.statistics.intervals import Values
from pipegap.analysis.statistics.pairs import SAME_ARM, pairs
from pipegap.analysis.table.answers import ACCURACY, MEASURES, Scores, answered, task_of, was_asked
from pipegap.analysis.table.load import load
from pipegap.analysis.table.points import settings
from pipegap.analysis.table.schema import DOWNSTREAM
from pipegap.trainer.base.status import Status

ARMS = "arms"
CHECKPOINTS = "two checkpoints"
"""Of what a difference is: of arms, from several seeds; of one seed, of its two models alone."""
HALF_WIDTH = 0.005
"""Of the accuracy: as small as the differences of the paper's table 4."""


class TaskScores(NamedTuple):
    """Scores of an arm and its sync partners in one task by measure, [seeds, questions]: of the
    same seeds and questions, in the same order."""

    optimizer: str
    point: str
    arm: str
    num_stages: int
    num_microbatches: int
    task: str
    seeds: Sequence[int]
    sync: Scores
    own: Scores

    def difference(self, measure: str) -> Values:
        """The arm's scores minus sync's."""
        return self.own[measure] - self.sync[measure]


KEYS = TaskScores._fields[:6]


def task_scores(trials: pd.DataFrame) -> list[TaskScores]:
    """The scores of every arm and task of which a pair answered the same questions.

    `trials`: `load`'s table. Of a task that was asked in several ways, the way counts that most
    pairs answered.
    """
    if not any(map(was_asked, trials["folder"])):  # a store may have many thousands of trials
        return []
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the gaps say them
        paired = pairs(trials)
    both = paired[(paired["status"] == Status.COMPLETED) & paired["gap"].notna()]
    folders = dict(zip(trials["trial_id"], trials["folder"], strict=True))
    known = {name: answered(folders[name]) for name in {*both["trial_id"], *both["trial_id_sync"]}}
    return [
        TaskScores(*map(_plain, key), *of_task)
        for key, rows in both.groupby(SAME_ARM)
        for of_task in _tasks(rows, known)
    ]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _tasks(rows: pd.DataFrame, known: dict[str, dict[str, Scores]]) -> Iterator[tuple[Any, ...]]:
    """Task, seeds, and the scores of sync and of the arm, for each task."""
    by_stem: dict[str, list[tuple[int, Scores, Scores]]] = {}
    for row in rows.sort_values("seed").to_dict("records"):
        own, sync = known[row["trial_id"]], known[row["trial_id_sync"]]
        for stem in own.keys() & sync.keys():
            by_stem.setdefault(stem, []).append((int(row["seed"]), sync[stem], own[stem]))
    chosen: dict[str, str] = {}
    for stem in sorted(by_stem, key=lambda stem: len(by_stem[stem])):
        chosen[task_of(stem)] = stem
    for task, stem in sorted(chosen.items()):
        seeds, of_sync, of_arm = zip(*by_stem[stem], strict=True)
        yield task, seeds, _stacked(of_sync), _stacked(of_arm)


def _stacked(scores: Sequence[Scores]) -> Scores:
    return {name: np.stack([of_seed[name] for of_seed in scores]) for name in scores[0]}


def downstream(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per optimizer, point, arm, task and measure; columns: `schema.DOWNSTREAM`.

    Intervals are over seeds and questions (`crossed`). Of one seed they are over questions alone,
    and say nothing of another run. Empty where no pair has answered a task.
    """
    words = settings(trials) if len(trials) else {}
    rows = [
        {**dict(zip(KEYS, scores, strict=False)), "setting": words[scores.point], **of_measure}
        for scores in task_scores(trials)
        for of_measure in _measures(scores)
    ]
    table = pd.DataFrame(rows, columns=[*DOWNSTREAM])
    return table.astype({name: dtype for name, (dtype, _) in DOWNSTREAM.items()})


def _measures(scores: TaskScores) -> Iterator[dict[str, Any]]:
    num_seeds, num_questions = scores.own[ACCURACY].shape
    for measure in MEASURES:
        difference = scores.difference(measure)
        low, high = crossed_interval(difference)
        yield {
            "measure": measure,
            "n": num_seeds,
            "questions": num_questions,
            "sync": scores.sync[measure].mean(),
            "value": scores.own[measure].mean(),
            "difference": difference.mean(),
            "low": low,
            "high": high,
            "of": ARMS if num_seeds > 1 else CHECKPOINTS,
            "p": _mcnemar(difference[0]) if measure == ACCURACY and num_seeds == 1 else np.nan,
            "detectable": detectable_difference(difference),
        }


def _mcnemar(difference: Values) -> float:
    """The exact p-value of two checkpoints' right and wrong answers (McNemar 1947)."""
    gained, lost = int((difference > 0).sum()), int((difference < 0).sum())
    return float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def precision(results: Path) -> str:
    """Lines on the differences in accuracy that the answers in a store can show: those detected
    with a probability of 80 %, and the seeds that HALF_WIDTH to each side needs."""
    tasks = task_scores(load(results)) if (results / "trials").is_dir() else []
    lines = [_precision(scores) for scores in tasks if scores.difference(ACCURACY)[1:].any()]
    none = "no task has two pairs of answers here yet: no difference can be told from chance"
    return "\n".join(lines or [f"power     {none}"])


def _precision(scores: TaskScores) -> str:
    difference = scores.difference(ACCURACY)
    needed = seeds_needed(difference, HALF_WIDTH)
    words = f"{needed} seeds for ±{HALF_WIDTH:g}" if needed else "too few questions"
    return (
        f"power     {scores.task}, {scores.optimizer} {scores.arm}: {len(scores.seeds)} seeds and "
        f"{difference.shape[1]:,} questions detect a difference in accuracy of "
        f"{detectable_difference(difference):.2g} (80 % power); {words}"
        + ("" if needed else f" for ±{HALF_WIDTH:g}, whatever the seeds")
    )
