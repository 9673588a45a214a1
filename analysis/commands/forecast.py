"""What will the delay cost on a larger rung? By a law fitted to a ladder of runs in a store."""

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.commands.words import count, having
from analysis.objects.mirror import pulled
from trainer.base.cli import Given, take_choice
from trainer.base.errors import BadInput
from trainer.base.places import require_folder

if TYPE_CHECKING:
    from analysis.forecast.answer import Answer
    from analysis.forecast.ladder import Ladder

KEYS = {
    "optimizer": "which one, as in the store",
    "updates": "T: how many are forecast",
    "batch": "B: tokens per update (default: the rungs' own, if they have one)",
    "parameters": "N: of the model (default: the rungs' own, if they have one)",
    "arm": "which one (default: every arm in the store)",
    "seeds": "of the runs that are forecast: their noise is in the interval (default: 3)",
    "results": "the store (default: results)",
    "record": "a folder for the forecasts with their dates, which `forecasts` checks",
    "out": "a folder for the figure",
    "format": "text, json",
    "COLUMN": "only trials with this value in a column: model=nano, optimizer.momentum=0.95",
}
LARGEST = 10**15
SIZES = ("batch", "parameters")


def main(given: Given) -> None:
    """Prints one row per arm; raises BadInput."""
    form = take_choice(given, "format", ("text", "json"))
    optimizer = having(given, "optimizer", KEYS)["optimizer"]
    updates = count(having(given, "updates", KEYS), "updates", 0, LARGEST)
    seeds = count(given, "seeds", 3, LARGEST)
    sizes = {key: count(given, key, 0, LARGEST) for key in SIZES if key in given}
    for key in {"record", "out"} & {*given}:
        require_folder(key, given[key])
    results = pulled(given.get("results", "results"))
    from analysis.forecast.answer import answer, plain, text

    conditions = {key: value for key, value in given.items() if key not in KEYS}
    answers = []
    for ladder in _ladders(results, optimizer, given.get("arm"), conditions):
        batch, parameters = (_size(key, ladder, sizes) for key in SIZES)
        answers.append(answer(ladder, (updates, batch, parameters), seeds))
    print(json.dumps([*map(plain, answers)], indent=1) if form == "json" else text(answers))
    _write([each for each in answers if each.point], given, conditions)


def _ladders(
    results: Path, optimizer: str, arm: str | None, conditions: Mapping[str, str]
) -> "list[Ladder]":
    from analysis.forecast.ladder import ladders
    from analysis.table.load import load
    from analysis.table.selection import fulfilling

    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the report says them
        trials = fulfilling(load(results), conditions)
    known = sorted(set(trials["optimizer"].dropna())) if len(trials) else []
    if optimizer not in known:
        allowed = f"must be in the store, which has {', '.join(known) or 'no such trial'}"
        raise BadInput("optimizer", optimizer, allowed)
    of_all_arms = ladders(trials, optimizer)
    arms = [ladder.arm for ladder in of_all_arms]
    if not arms or (arm is not None and arm not in arms):
        allowed = f"must have trials beside sync's: the store has {', '.join(arms) or 'none'}"
        raise BadInput("arm", arm or "", allowed)
    return [ladder for ladder in of_all_arms if arm in (None, ladder.arm)]


def _size(key: str, ladder: "Ladder", given: Mapping[str, int]) -> int:
    """Return tokens per update or parameters of the target: as given, or the one size that the
    rungs have; 1 without rungs, of which nothing is forecast."""
    there = {getattr(rung, key) for rung in ladder.rungs}
    if key not in given and len(there) > 1:
        has = ", ".join(map(str, sorted(there)))
        raise BadInput(key, "", f"is missing: {KEYS[key]}; the rungs have {has}")
    return given.get(key) or min(there, default=1)


def _write(
    answers: "Sequence[Answer]", given: Mapping[str, str], conditions: Mapping[str, str]
) -> None:
    """Write the record and the figure of the forecasts if they are asked for."""
    from analysis.figures.forecast import draw
    from analysis.forecast.register import record

    if "record" in given:
        for each in answers:
            print(f"recorded {record(each, conditions, Path(given['record']))}", file=sys.stderr)
    if "out" in given and answers:
        print(f"wrote {draw(answers, Path(given['out']))}", file=sys.stderr)
