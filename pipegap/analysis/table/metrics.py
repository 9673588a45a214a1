"""The files of one trial: its config, what it measured at each update, its curves, its answers to
tasks.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipegap.analysis.table.rows import Row
from pipegap.trainer.data.hub import BENCHMARKS
from pipegap.trainer.folder.wellformed import CONFIG, read, row_of, rows_of

MOST = 100
"""Points of a curve that a small picture can show."""

Point = tuple[int, float]
_T = TypeVar("_T")


class DamagedRows(UserWarning):
    """Lines of a metrics.jsonl are damaged, so that curves lack their updates; or answers are."""


def config_of(folder: str) -> Row:
    """Return one trial's resolved config, in which 1 is not 1.0 as it is in a column of floats.

    Empty if there is none. Raises Damaged.
    """
    try:
        return read(Path(folder) / "config.json", CONFIG)
    except FileNotFoundError:
        return {}


def validation_losses(folder: str) -> pd.DataFrame:
    """Return columns `update` (0-based) and `val_loss` of one trial; NaN if not finite."""
    return _series(folder, "val_loss")


def training_losses(folder: str) -> pd.DataFrame:
    """Return columns `update` (0-based) and `train_loss` of one trial; NaN if not finite."""
    return _series(folder, "train_loss")


def _series(folder: str, name: str) -> pd.DataFrame:
    rows = [*metrics(folder, name)]
    # Of lists pandas asks each value for its type, which takes as long as to read the file.
    updates = np.array([row["update"] for row in rows], dtype=np.int64 if rows else object)
    values = np.array([row[name] for row in rows], dtype=float)
    return pd.DataFrame({"update": updates, name: values})


def metrics(folder: str, key: str) -> Iterator[Row]:
    """Return the rows of one trial's metrics.jsonl that have `key`, by update.

    No row if there is no such file. Warns of lines that are damaged, which are left out.
    """
    path, quoted = Path(folder) / "metrics.jsonl", f'"{key}"'.encode()
    content = _content(path)
    # Lines are parsed only if they hold the key, or look damaged: parsing takes nearly all time.
    if quoted not in content and _are_whole(content):
        return iter(())
    lines = content.splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()  # a running trial may be writing it
    rows = [row_of(line) for line in lines if quoted in line or not _looks_whole(line)]
    by_update = {row["update"]: row for row in rows if row is not None}  # the last of equal ones
    if num_damaged := rows.count(None):
        message = f"{path} has {num_damaged} damaged lines, which are left out"
        warnings.warn(f"{message}: run its trial again", DamagedRows, stacklevel=2)
    return (by_update[update] for update in sorted(by_update) if key in by_update[update])


def _content(path: Path) -> bytes:
    """Empty if there is no such file, or no more."""
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return path.read_bytes()
    return b""


def _are_whole(content: bytes) -> bool:
    """Return whether `_looks_whole` of every line, in a tenth of the time."""
    inner = content.count(b"\n") - 1  # breaks between two lines
    return _looks_whole(content) and content.count(b"}\n{") == inner and b"\r" not in content


def _looks_whole(line: bytes) -> bool:
    return line.startswith(b"{") and line.endswith(b"}\n")


class Curves(NamedTuple):
    """Update and loss of evenly spaced updates, with the first and the last."""

    train: Sequence[Point]
    validation: Sequence[Point]
    num_updates: int
    num_evaluations: int

    @property
    def words(self) -> str:
        """How many of the updates and evaluations there are."""
        if not self.num_updates:
            return "No update is recorded."
        return (
            f"{len(self.train)} of {self.num_updates:,} updates and {len(self.validation)} of "
            f"{self.num_evaluations:,} evaluations, evenly spaced; losses in nats per token."
        )


def curves(folder: Path) -> Curves:
    """The curves of the trial in `folder`, of MOST points each. Only the lines that are shown are
    parsed; a damaged one is left out."""
    lines = _content(folder / "metrics.jsonl").splitlines(keepends=True)
    evaluations = [line for line in lines if b'"val_loss"' in line]
    return Curves(
        _points(rows_of(spaced(lines, MOST)), "train_loss"),
        _points(rows_of(spaced(evaluations, MOST)), "val_loss"),
        len(lines),
        len(evaluations),
    )


def spaced(items: Sequence[_T], most: int) -> Sequence[_T]:
    """At most `most` (2 or more) of the items, evenly spaced, with the first and the last."""
    if len(items) <= most:
        return items
    step = (len(items) - 1) / (most - 1)
    return [items[round(index * step)] for index in range(most)]


def _points(rows: Iterable[Row | None], key: str) -> list[Point]:
    whole_rows = filter(None, rows)
    return [(row["update"], row[key]) for row in whole_rows if row.get(key) is not None]


# What trials' final models answer to downstream tasks, and what that scores.
#
# The answers are the samples that lm-eval logs in trials/<id>/evaluation/<task>/, or files
# evaluation/<task>-<hash>.jsonl of version 0.2.

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
                # The times are part of the key of the cache: a changed file is read again.
                digest, values = _scores(tuple((file, file.stat().st_mtime_ns) for file in files))
                # A file of version 0.2 has the hash in its name.
                scores[f"{path.name}-{digest}" if digest else path.stem] = values
        except (ValueError, LookupError, OSError):
            message = f"{path} is damaged: delete it, and evaluate its trial again"
            warnings.warn(message, DamagedRows, stacklevel=2)
    return scores


def _latest(path: Path) -> list[Path]:
    """The files of a task: the last samples of each subtask, or the one of version 0.2."""
    if path.suffix == ".jsonl" and not path.stem.endswith(".unfinished"):
        return [path]
    samples = sorted(path.rglob("samples_*_*.jsonl"))  # samples_SUBTASK_DATE.jsonl
    return [*{file.name.rpartition("_")[0]: file for file in samples}.values()]  # latest by date


def task_of(stem: str) -> str:
    """Return the name of the task, without how it was asked."""
    return stem.rpartition("-")[0].partition("@")[0]


def title(task: str) -> str:
    """Return the task's name as people write it; lm-eval's if it is no benchmark of ours."""
    return BENCHMARKS[task].title if task in BENCHMARKS else task


@lru_cache(maxsize=4096)
def _scores(files: tuple[tuple[Path, int], ...]) -> tuple[str, Scores]:
    """Return the hash of the questions in `files`, which is empty for files of version 0.2, and the
    scores. Each of `files` was last changed at its time."""
    rows = [json.loads(line) for path, _ in files for line in path.read_bytes().splitlines()]
    # lm-eval tells questions apart by these hashes, and how they were put; its rows have a filter.
    keys = ("doc_hash", "prompt_hash", "target_hash")
    hashes = "".join(row[key] for row in rows for key in keys if "filter" in row)
    measured = [_measured(_of_sample(row) if "filter" in row else row) for row in rows]
    scores = dict(zip((*MEASURES, CHANCE), np.array(measured).T, strict=True))
    return hashlib.sha256(hashes.encode()).hexdigest()[:12] if hashes else "", scores


def _of_sample(sample: Row) -> Row:
    """Return what is measured of a sample of lm-eval; raises LookupError for one without choices.

    lm-eval logs its own accuracies. By them the right choice is known, but where another one of
    several is the likeliest: then `target` says it, by its number or its text.
    """
    # One request for each choice: arg_0 is the context, arg_1 the text whose likelihood is asked.
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
    logs, gold = np.array(row["log_likelihoods"]), row["gold"]  # [choices], natural logarithms
    per_byte = logs / np.log(2) / np.array(row["bytes"])  # bits, negative
    right, wrong = per_byte[gold], np.delete(per_byte, gold)
    likelihoods = np.exp2(per_byte - per_byte.max())  # up to a factor: exp2 cannot vanish for all
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
