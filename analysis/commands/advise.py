"""May I make my pipeline asynchronous? From the trials of a store and a simulated pipeline."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.errors import BadInput
from trainer.words import Given, take_choice

DONE = 0
KEYS = {
    "optimizer": "which one, as in the store",
    "stages": "p of the pipeline",
    "microbatches": "m of the pipeline, p - 1 or more",
    "results": "the store (default: results)",
    "updates": "how long sync trains (default: what the store can decide at, else the longest)",
    "forward": "time of a microbatch on each stage, in any unit, e.g. the layers of each: 8,8,8,6",
    "backward": "the same (default: twice the forward)",
    "update": "time of an update on a stage (default: 0)",
    "communication": "time until a result is there on the next stage (default: 0)",
    "format": "text, json",
    "COLUMN": "only trials with this value in a column: num_parameters=418752, batch_size=16",
}
FORMATS: Mapping[str, Callable[[Any], str]] = {
    "text": str,
    "json": lambda advice: json.dumps(_plain(asdict(advice)), indent=1, ensure_ascii=False),
}


def main(given: Given) -> int:
    """Exit code 0 whatever the advice; raises BadInput."""
    from analysis.advice import advise
    from analysis.selection import fulfilling
    from analysis.store import load

    stages, microbatches = (_count(given, key) for key in ("stages", "microbatches"))
    updates = _count(given, "updates") if "updates" in given else None
    form = take_choice(given, "format", [*FORMATS])
    optimizer = _required(given, "optimizer")
    conditions = {key: value for key, value in given.items() if key not in KEYS}
    costs = _costs(given, stages)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        trials = fulfilling(load(Path(given.get("results", "results"))), conditions)
        advice = advise(
            trials,
            optimizer=optimizer,
            stages=stages,
            microbatches=microbatches,
            updates=updates,
            costs=costs,
        )
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)
    print(FORMATS[form](advice))
    return DONE


def _required(given: Mapping[str, str], key: str) -> str:
    if key not in given:
        raise BadInput(key, "", f"is missing: {KEYS[key]}")
    return given[key]


def _count(given: Mapping[str, str], key: str) -> int:
    value = _required(given, key)
    if not value.isdecimal() or int(value) < 1:
        raise BadInput(key, value, "must be a whole number, 1 or more")
    return int(value)


def _costs(given: Mapping[str, str], stages: int) -> Any:
    from analysis.advice.speed import Costs

    forward = _times(given, "forward", stages) or (1.0,) * stages
    backward = _times(given, "backward", stages) or tuple(2 * time for time in forward)
    if not min(*forward, *backward) > 0:
        raise BadInput("forward", given.get("forward", "1"), "must be above 0, as the backward")
    single = (_times(given, key, 1) or (0.0,) for key in ("update", "communication"))
    [update], [communication] = single
    return Costs(forward, backward, update, communication)


def _times(given: Mapping[str, str], key: str, num: int) -> tuple[float, ...]:
    """One for each of `num`, of a single number all alike; none if the key is not given."""
    if key not in given:
        return ()
    allowed = "must be a number of 0 or more" + (f", or {num}, one a stage" if num > 1 else "")
    try:
        times = tuple(float(word) for word in given[key].split(","))
    except ValueError:
        raise BadInput(key, given[key], allowed) from None
    if len(times) not in (1, num) or not all(0 <= time < math.inf for time in times):
        raise BadInput(key, given[key], allowed)
    return times * num if len(times) == 1 else times


def _plain(node: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(node, dict):
        return {key: _plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_plain(value) for value in node]
    return None if isinstance(node, float) and not math.isfinite(node) else node
