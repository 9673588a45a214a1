"""The answers of trials to downstream tasks, and what they score: `pipegap evaluate`."""

import json
import os
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipegap.analysis.table.metrics import DamagedRows
from pipegap.trainer.data.benchmarks import BENCHMARKS
from pipegap.trainer.evaluation.answers import FOLDER, UNFINISHED

Values = NDArray[np.float64]
Scores = dict[str, Values]
"""Measure → one value per question, in the order of the questions."""

ACCURACY, BITS = "accuracy", "bits_per_byte"
MEASURES = {
    ACCURACY: "the likeliest choice is the right one (lm-eval's acc)",
    "accuracy_norm": "the likeliest per letter is (lm-eval's acc_norm)",
    BITS: "of the right answer, −log2 of its likelihood per byte; less is better",
    "margin": "bits per byte by which the right answer is likelier than the likeliest other one",
    "share": "of the right answer in the sum of all choices' likelihoods per byte",
}
"""What is measured of each answer, and what it says. A model that answers by chance may still find
right answers likelier: the last three see more than the first two in a small one."""
CHANCE = "chance"
"""Beside the measures: the accuracy of a guess."""


def was_asked(folder: str) -> bool:
    """Whether the trial in `folder` was asked anything."""
    return os.path.isdir(os.path.join(folder, FOLDER))


def answered(folder: str) -> dict[str, Scores]:
    """Return the scores of each task that the trial in `folder` has answered, by the stem of its
    file: a hash in the stem tells tasks apart that were asked otherwise.

    Warns of damaged files, which are left out.
    """
    scores = {}
    for path in sorted((Path(folder) / FOLDER).glob("*.jsonl")):
        if path.stem.endswith(UNFINISHED):
            continue
        try:
            scores[path.stem] = _scores(str(path), path.stat().st_mtime_ns)
        except (ValueError, LookupError, OSError):
            message = f"{path} is damaged: delete it, and evaluate its trial again"
            warnings.warn(message, DamagedRows, stacklevel=2)
    return scores


def task_of(stem: str) -> str:
    """Return the name of the task."""
    return stem.rpartition("-")[0]


def title(task: str) -> str:
    """Return the task's name as people write it; lm-eval's if it is no benchmark of ours."""
    return BENCHMARKS[task].title if task in BENCHMARKS else task


@lru_cache(maxsize=4096)
def _scores(path: str, changed: int) -> Scores:
    """Return the scores in a file that was last `changed` at this time."""
    rows = [_measured(json.loads(line)) for line in Path(path).read_bytes().splitlines()]
    return dict(zip((*MEASURES, CHANCE), np.array(rows).T, strict=True))


def _measured(row: dict[str, Any]) -> tuple[float, ...]:
    """Return the measures of one answer, and the chance."""
    logs, gold = np.array(row["log_likelihoods"]), row["gold"]
    per_byte = logs / np.log(2) / np.array(row["bytes"])
    right, others = per_byte[gold], np.delete(per_byte, gold)
    likelihoods = np.exp2(per_byte - per_byte.max())
    return (
        float(logs.argmax() == gold),
        float((logs / np.array(row["letters"])).argmax() == gold),
        -right,
        right - others.max(),
        likelihoods[gold] / likelihoods.sum(),
        1 / len(logs),
    )
