"""Asks trials of a store the questions of downstream tasks, each trial in a Ray task."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from sweeps.plan.devices import bundles
from sweeps.request.expand import Trial
from trainer.base.errors import BadInput, LeaseLost
from trainer.base.status import Status
from trainer.evaluation.answers import AnswersFile
from trainer.evaluation.evaluate import evaluate_trial
from trainer.evaluation.questions import Questions
from trainer.folder.lease import Held

POLL_EVERY = 1.0
"""Seconds between two looks at what is done."""
RETRIES = 2
"""How often a trial whose process died is asked again: it goes on where that stopped."""


@dataclass(frozen=True)
class Evaluation:
    """What some trials are asked."""

    trials: Sequence[Trial]
    tasks: Sequence[Questions]
    max_length: int | None

    def files(self, trial: Trial) -> list[AnswersFile]:
        """Return where a trial has its answers, one file per task."""
        longest = self.max_length or trial.config["seq_len"]
        return [AnswersFile.of(trial.folder, questions, longest) for questions in self.tasks]

    def left(self) -> list[Trial]:
        """Return the trials that have not answered all questions."""
        return [t for t in self.trials if not all(file.is_done() for file in self.files(t))]

    def num_asked(self) -> int:
        """Return the number of questions, counted once for each trial."""
        return len(self.trials) * sum(len(questions.items) for questions in self.tasks)

    def num_answered(self) -> int:
        """Return the number of questions that are answered."""
        return sum(file.num_found() for trial in self.trials for file in self.files(trial))


def run_evaluation(
    evaluation: Evaluation,
    gpus_per_trial: float,
    asked_to_stop: Callable[[], bool],
    show: Callable[[], None],
) -> dict[str, str]:
    """Ask every trial that has not answered all; return, by trial, why it could not answer.

    Call it within `cluster`. Calls `show` about every second. Once `asked_to_stop` is true, what
    runs is ended: answers are on the disk, and the next call goes on from them.
    """
    tasks = ray.put(evaluation.tasks)
    remote: Any = ray.remote(_ask)
    pending: dict[Any, Trial] = {}
    for trial in evaluation.left():
        needed = bundles(trial, gpus_per_trial)[-1]  # of a gang: one rank's
        options = remote.options(
            num_cpus=needed.get("CPU", 0), num_gpus=needed.get("GPU", 0), max_retries=RETRIES
        )
        pending[options.remote(trial.config, trial.folder, tasks, evaluation.max_length)] = trial
    problems: dict[str, str] = {}
    while pending and not asked_to_stop():
        done, _ = ray.wait([*pending], num_returns=1, timeout=POLL_EVERY)
        for answer in done:
            trial = pending.pop(answer)
            if why := _why_not(answer):
                problems[trial.name] = why
        show()
    for answer in pending:
        ray.cancel(answer, force=True)
    return problems


def _why_not(answer: Any) -> str:
    """Return why a trial could not answer; empty if it did."""
    try:
        return str(ray.get(answer))
    except ray.exceptions.RayError as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _ask(config: Any, folder: Any, tasks: Sequence[Questions], max_length: int | None) -> str:
    """Ask a trial in a worker; return why it could not answer, or nothing if it did."""
    try:
        evaluate_trial(config, folder, tasks, max_length)
    except (Held, LeaseLost):
        return f"{Status.ELSEWHERE}: another process asks it"
    except BadInput as error:
        return str(error)
    return ""


def lines(evaluation: Evaluation) -> Iterator[str]:
    """Yield what is asked, one line per task."""
    for questions in evaluation.tasks:
        yield f"{questions.task:<16}{len(questions.items):>7,} questions ({questions.source})"
