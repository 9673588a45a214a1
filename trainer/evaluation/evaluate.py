"""Asks the model that a trial ended with the questions of some tasks."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipegap.trainer.base.atomic import file_hash
from pipegap.trainer.base.resources import device_name, reproducible, require_device
from pipegap.trainer.config.identity import made_by
from pipegap.trainer.evaluation.answers import EVALUATOR_VERSION, FOLDER, AnswersFile, Row, answer
from pipegap.trainer.evaluation.questions import MultipleChoice, Questions
from pipegap.trainer.folder.lease import Lease, leased
from pipegap.trainer.models.export import FINAL

Config = Mapping[str, Any]

CHUNK = 64
"""Questions between two writes: what a kill costs at most."""


class LikelihoodRequest(NamedTuple):
    """A context and its continuation, as lm-eval's models take them."""

    args: tuple[str, str]


def evaluate_trial(
    config: Config,
    folder: Path,
    tasks: Sequence[Questions],
    max_length: int | None = None,
    asked_to_stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Answers what the trial in `folder` has not answered yet; returns whether all is answered now.

    An input has at most `max_length` tokens; None stands for the config's `seq_len`. Raises Held if
    another process asks this trial, LeaseLost if one took over, BadInput if the weights or the
    tokenizer cannot be used.
    """
    longest = max_length or config["seq_len"]
    todo = [
        (questions, file)
        for questions in tasks
        if not (file := AnswersFile.of(folder, questions, longest)).is_done()
    ]
    if not todo:
        return True
    from pipegap.trainer.evaluation.adapter import final_model  # lm-eval is slow to load

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
    """Answers the open questions of one task; returns whether its file is complete."""
    if file.is_done():
        return True
    answers, started = file.resume(), time.monotonic()
    for places in _chunks(questions.items, answers):
        if asked_to_stop():
            return False
        rows = _rows(model, questions.items, places)
        lease.require()
        file.append(rows)
        answers |= {row["question"]: row for row in rows}
    about_task = {
        "task": questions.task,
        "questions": len(questions.items),
        "questions_sha256": questions.hash,
        "source": questions.source,
        "seconds": time.monotonic() - started,
    }
    file.publish(answers, {**about_task, **about}, lease.require)
    return True


def _chunks(items: Sequence[MultipleChoice], answers: Mapping[int, Row]) -> Iterator[list[int]]:
    """Yields places of open questions, the longest first, so that a chunk has like lengths."""

    def size(place: int) -> int:
        return max(len(context) + len(answer) for context, answer in items[place].requests)

    places = sorted(set(range(len(items))) - answers.keys(), key=size, reverse=True)
    yield from (places[start : start + CHUNK] for start in range(0, len(places), CHUNK))


def _rows(model: Any, items: Sequence[MultipleChoice], places: Sequence[int]) -> list[Row]:
    """Return the answers to the questions at these places."""
    requests = [LikelihoodRequest(args) for place in places for args in items[place].requests]
    logs = iter(log for log, _ in model.loglikelihood(requests, disable_tqdm=True))
    return [
        answer(place, items[place], [next(logs) for _ in items[place].requests]) for place in places
    ]
