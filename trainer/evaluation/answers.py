"""The answers of a trial to the questions of one task: a file, one question per line.

Answers are first appended to an unfinished file, each line whole or not at all, so that a process
that goes on after a kill asks only open questions. The complete file appears atomically and has
each question once.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pipegap.trainer.base.atomic import always, write_atomically, write_json
from pipegap.trainer.evaluation.questions import MultipleChoice, Questions

Row = dict[str, Any]

EVALUATOR_VERSION = 2
"""Raised by hand when a fix changes log-likelihoods: answers of two versions are not compared."""
FOLDER = "evaluation"
UNFINISHED = ".unfinished"
DIGITS = 6
"""Digits after the point of log-likelihoods, in nats."""


def answers_id(questions: Questions, max_length: int) -> str:
    """Return 12 hexadecimal digits, a hash of the questions and of how they are asked."""
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
        """The file of all answers, which exists once all questions are answered."""
        return self.folder / f"{self.stem}.jsonl"

    @property
    def about(self) -> Path:
        """The file that says what made the answers, as JSON."""
        return self.folder / f"{self.stem}.json"

    @property
    def unfinished(self) -> Path:
        """The file of the answers so far."""
        return self.folder / f"{self.stem}{UNFINISHED}.jsonl"

    def is_done(self) -> bool:
        """Whether the answers are complete."""
        return self.path.is_file()

    def num_found(self) -> int:
        """Return the number of answers so far."""
        for path in (self.path, self.unfinished):
            if path.is_file():
                return path.read_bytes().count(b"\n")
        return 0

    def resume(self) -> dict[int, Row]:
        """Return the answers so far by the question's place; drops a line that a kill cut short."""
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
        self, answers: Mapping[int, Row], about: Row, permit: Callable[[], None] = always
    ) -> None:
        """Writes the complete file; `permit` is that of `trainer.base.atomic.publish`."""
        write_json(self.about, about, permit)
        content = b"".join(_line(answers[place]) for place in sorted(answers))
        write_atomically(self.path, content, permit)
        self.unfinished.unlink(missing_ok=True)


def _line(row: Row) -> bytes:
    return (json.dumps(row, separators=(",", ":")) + "\n").encode()


def answer(place: int, question: MultipleChoice, logs: Sequence[float]) -> Row:
    """Return the line of one question, which has the number `place` in its task.

    For each choice the line has the log-likelihood in nats, the letters (by which lm-eval divides
    it), and the bytes that follow on the context. `gold` is the number of the right choice.
    """
    return {
        "question": place,
        "subtask": question.task,
        "number": question.number,
        "gold": question.gold,
        "log_likelihoods": [round(log, DIGITS) for log in logs],
        "letters": [len(choice) for choice in question.choices],
        "bytes": [len(text.strip().encode()) for _, text in question.requests],
    }
