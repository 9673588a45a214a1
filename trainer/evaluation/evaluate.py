"""Asks the model that a trial ended with the questions of some tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainer.base.digests import file_hash
from trainer.base.resources import device_name, reproducible, require_device
from trainer.config.identity import made_by
from trainer.evaluation.answers import EVALUATOR_VERSION, FOLDER, AnswersFile, Row, answer
from trainer.evaluation.questions import Question, Questions
from trainer.folder.lease import Lease, leased
from trainer.models.export import FINAL

Config = Mapping[str, Any]

CHUNK = 64
"""Questions between two writes: what a kill costs at most."""


class Request(NamedTuple):
    """A likelihood that is asked, as lm-eval's models want it."""

    args: tuple[str, str]


def evaluate_trial(
    config: Config,
    folder: Path,
    tasks: Sequence[Questions],
    max_length: int | None = None,
    asked_to_stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Answers what the trial in `folder` has not answered yet; returns whether that is all now.

    `max_length`: the most tokens of an input, or None for those of a sequence that it was trained
    on. Raises Held if another process asks this trial, LeaseLost if one took over, BadInput if the
    weights or the tokenizer cannot be used.
    """
    longest = max_length or config["seq_len"]
    todo = [
        (questions, file)
        for questions in tasks
        if not (file := AnswersFile.of(folder, questions, longest)).is_done()
    ]
    if not todo:
        return True
    from trainer.evaluation.final import final_model

    device = require_device(config["device"])
    by_whom = made_by(device_name(device))
    (folder / FOLDER).mkdir(exist_ok=True)
    ends: list[bool] = []
    with (
        leased(folder / FOLDER, lambda: "done" if all(ends) else "stopped", by_whom) as lease,
        reproducible(0, config["num_threads"], deterministic=False),
    ):
        model = final_model(config, folder, longest, device)
        about = {
            "max_length": longest,
            "evaluator": EVALUATOR_VERSION,
            "weights_sha256": file_hash(folder / FINAL),
            **by_whom,
        }
        for questions, file in todo:
            ends.append(_answer(model, questions, file, lease, about, asked_to_stop))
    return all(ends)


def _answer(
    model: Any,
    questions: Questions,
    file: AnswersFile,
    lease: Lease,
    about: Row,
    asked_to_stop: Callable[[], bool],
) -> bool:
    """Whether the file is complete; it may be that of an earlier attempt."""
    if file.is_done():
        return True
    found, started = file.resume(), time.monotonic()
    for places in _chunks(questions.items, found):
        if asked_to_stop():
            return False
        rows = _rows(model, questions.items, places)
        lease.require()
        file.append(rows)
        found |= {row["question"]: row for row in rows}
    of_task = {
        "task": questions.task,
        "questions": len(questions.items),
        "questions_sha256": questions.hash,
        "source": questions.source,
        "seconds": time.monotonic() - started,
    }
    file.publish(found, {**of_task, **about}, lease.require)
    return True


def _chunks(items: Sequence[Question], found: Mapping[int, Row]) -> Iterator[list[int]]:
    """The places of the open questions, the longest first: what is asked together is as long."""
    left = sorted(set(range(len(items))) - found.keys(), key=lambda place: -_size(items[place]))
    yield from (left[start : start + CHUNK] for start in range(0, len(left), CHUNK))


def _size(question: Question) -> int:
    return max(len(context) + len(continuation) for context, continuation in question.requests)


def _rows(model: Any, items: Sequence[Question], places: Sequence[int]) -> list[Row]:
    """The answers to the questions at these places."""
    asked = [Request(args) for place in places for args in items[place].requests]
    logs = iter(log for log, _ in model.loglikelihood(asked, disable_tqdm=True))
    return [
        answer(place, items[place], [next(logs) for _ in items[place].requests]) for place in places
    ]
