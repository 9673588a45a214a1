"""What trials' final models answer to downstream tasks, and what that scores.

Read are the samples that lm-eval logs, in trials/<id>/evaluation/<task>/, and the files
evaluation/<task>-<hash>.jsonl of version 0.2.
"""

import hashlib
import json
import os
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipegap.analysis.table.metrics import DamagedRows
from pipegap.trainer.data.benchmarks import BENCHMARKS

Row = dict[str, Any]
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


FOLDER = "evaluation"
HASHES = ("doc_hash", "prompt_hash", "target_hash")
"""lm-eval's own, of a question as it was put."""


def was_asked(folder: str) -> bool:
    """Whether the trial in `folder` was asked anything."""
    return os.path.isdir(os.path.join(folder, FOLDER))


def answered(folder: str) -> dict[str, Scores]:
    """Return the scores of each task that the trial in `folder` has answered, by TASK-HASH; the
    hash tells tasks apart that were asked otherwise.

    Warns of damaged files, which are left out.
    """
    scores = {}
    for path in (Path(folder) / FOLDER).glob("[!.]*"):
        try:
            if files := _latest(path):
                answers = _scores(tuple((file, file.stat().st_mtime_ns) for file in files))
                scores[answers.stem(path)] = answers.scores
        except (ValueError, LookupError, OSError):
            message = f"{path} is damaged: delete it, and evaluate its trial again"
            warnings.warn(message, DamagedRows, stacklevel=2)
    return scores


def _latest(path: Path) -> list[Path]:
    """The files of a task: the last samples of each subtask, or the one of version 0.2."""
    if path.suffix == ".jsonl" and not path.stem.endswith(".unfinished"):
        return [path]
    samples = sorted(path.rglob("samples_*_*.jsonl"))  # samples_SUBTASK_DATE.jsonl
    return [*{file.name.rpartition("_")[0]: file for file in samples}.values()]


def task_of(stem: str) -> str:
    """Return the name of the task, without how it was asked."""
    return stem.rpartition("-")[0].partition("@")[0]


def title(task: str) -> str:
    """Return the task's name as people write it; lm-eval's if it is no benchmark of ours."""
    return BENCHMARKS[task].title if task in BENCHMARKS else task


class Answers(NamedTuple):
    """What a model scores in a task; `hash` is of the questions, empty in files of version 0.2."""

    hash: str
    scores: Scores

    def stem(self, path: Path) -> str:
        """TASK-HASH; a file of version 0.2 has it in its name."""
        return f"{path.name}-{self.hash}" if self.hash else path.stem


@lru_cache(maxsize=4096)
def _scores(files: tuple[tuple[Path, int], ...]) -> Answers:
    """Return what is in `files`, each of which was last changed at its time."""
    rows = [json.loads(line) for path, _ in files for line in path.read_bytes().splitlines()]
    hashes = "".join(row[key] for row in rows for key in HASHES if "filter" in row)
    measured = [_measured(_of_sample(row) if "filter" in row else row) for row in rows]
    scores = dict(zip((*MEASURES, CHANCE), np.array(measured).T, strict=True))
    return Answers(hashlib.sha256(hashes.encode()).hexdigest()[:12] if hashes else "", scores)


def _of_sample(sample: Row) -> Row:
    """Return what is measured of a sample of lm-eval; raises LookupError for one without choices.

    lm-eval logs its own accuracies. By them the right choice is known, but where another one of
    several is the likeliest: then `target` says it, by its number or its text.
    """
    choices = [argument["arg_1"].strip() for argument in sample["arguments"].values()]
    logs = [float(log) for log, _ in sample["filtered_resps"]]
    if "acc_mutual_info" in sample:  # asked once more, without a context
        choices, logs = choices[: len(choices) // 2], logs[: len(logs) // 2]
    best = int(np.argmax(logs))
    other_places = [place for place in range(len(logs)) if place != best]
    target = sample["target"]
    if sample["acc"]:
        gold = best
    elif len(other_places) == 1:
        [gold] = other_places
    else:
        gold = int(target) if target.isdigit() else choices.index(target.strip())
    return {
        "log_likelihoods": logs,
        "gold": gold,
        "letters": [len(choice) for choice in choices],
        "bytes": [len(choice.encode()) for choice in choices],
        "accuracy_norm": sample.get("acc_norm"),
    }


def _measured(row: Row) -> tuple[float, ...]:
    """Return the measures of one answer, and the chance."""
    logs, gold = np.array(row["log_likelihoods"]), row["gold"]
    per_byte = logs / np.log(2) / np.array(row["bytes"])
    right, wrong = per_byte[gold], np.delete(per_byte, gold)
    likelihoods = np.exp2(per_byte - per_byte.max())
    normed = row.get("accuracy_norm")
    if normed is None:
        normed = (logs / np.array(row["letters"])).argmax() == gold
    return (
        float(logs.argmax() == gold),
        float(normed),
        -right,
        right - wrong.max(),
        likelihoods[gold] / likelihoods.sum(),
        1 / len(logs),
    )
