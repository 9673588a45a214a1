"""The answers of a trial to the questions of one task: a file, one question per line.

While they are found they are appended to another file, each line whole or not at all: whoever goes
on after a kill asks only what is not answered there. The complete file appears atomically, and each
question is in it once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from trainer.base.atomic import always, write_atomically, write_json
from trainer.evaluation.questions import Question, Questions

Row = dict[str, Any]

EVALUATOR_VERSION = 2
"""Raised by hand when a fix changes log-likelihoods: answers of different ones are not compared."""
FOLDER = "evaluation"
UNFINISHED = ".unfinished"
DIGITS = 6
"""Of log-likelihoods, in nats, after the point."""


def answers_id(questions: Questions, max_length: int) -> str:
    """12 hexadecimal digits of what is asked, and of how."""
    made_of = [questions.hash, max_length, EVALUATOR_VERSION]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class AnswersFile:
    """The answers in `folder`/evaluation to the task named `stem`: its name and its hash."""

    folder: Path
    stem: str

    @classmethod
    def of(cls, folder: Path, questions: Questions, max_length: int) -> Self:
        """Where the trial in `folder` has its answers."""
        return cls(folder / FOLDER, f"{questions.task}-{answers_id(questions, max_length)}")

    @property
    def path(self) -> Path:
        """The file of all answers; it is there once they are complete."""
        return self.folder / f"{self.stem}.jsonl"

    @property
    def about(self) -> Path:
        """What made them, as JSON."""
        return self.folder / f"{self.stem}.json"

    @property
    def unfinished(self) -> Path:
        """Those that were found so far."""
        return self.folder / f"{self.stem}{UNFINISHED}.jsonl"

    def is_done(self) -> bool:
        """Whether the answers are complete."""
        return self.path.is_file()

    def num_found(self) -> int:
        """How many there are so far."""
        for path in (self.path, self.unfinished):
            if path.is_file():
                return path.read_bytes().count(b"\n")
        return 0

    def resume(self) -> dict[int, Row]:
        """The answers so far, by the question's place; drops a line that a kill cut short."""
        if not self.unfinished.is_file():
            return {}
        content = self.unfinished.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            os.truncate(self.unfinished, len(whole))
        rows = map(json.loads, whole.splitlines())
        return {row["question"]: row for row in rows}

    def append(self, rows: Iterable[Row]) -> None:
        """Adds answers, which are on the disk on return."""
        with self.unfinished.open("ab") as file:
            file.write(b"".join(_line(row) for row in rows))
            file.flush()
            os.fsync(file.fileno())

    def publish(
        self, found: Mapping[int, Row], about: Row, permit: Callable[[], None] = always
    ) -> None:
        """Writes the complete file; `permit`: see `trainer.base.atomic.publish`."""
        write_json(self.about, about, permit)
        content = b"".join(_line(found[place]) for place in sorted(found))
        write_atomically(self.path, content, permit)
        self.unfinished.unlink(missing_ok=True)


def _line(row: Row) -> bytes:
    return (json.dumps(row, separators=(",", ":")) + "\n").encode()


def answer(place: int, question: Question, logs: Sequence[float]) -> Row:
    """The line of one question: `question`, its place among all of the task; the log-likelihood of
    each choice, in nats; the letters of each choice, by which lm-eval divides it; the bytes of what
    follows on the context; and the number of the right one."""
    return {
        "question": place,
        "subtask": question.task,
        "number": question.number,
        "gold": question.gold,
        "log_likelihoods": [round(log, DIGITS) for log in logs],
        "letters": [len(choice) for choice in question.choices],
        "bytes": [len(text.strip().encode()) for _, text in question.requests],
    }
