"""May I make my pipeline asynchronous? From the trials of a store and a simulated pipeline."""

import json
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import yaml

from analysis.commands.words import count, having, plain
from analysis.objects.mirror import pulled
from trainer.base.build import build
from trainer.base.cli import Given, number, take_choice
from trainer.base.errors import BadInput
from trainer.base.places import CONF
from trainer.config.names import yamls

KEYS = {
    "optimizer": "which one, as in the store",
    "stages": "p of the pipeline",
    "microbatches": "m of the pipeline, p - 1 or more",
    "results": "the store (default: results)",
    "activations": "of how many microbatches a rank may keep activations (default: as 2BW does)",
    "updates": "how long sync trains (default: what the store can decide at, else the longest)",
    "forward": "time of a microbatch on each stage, in any unit, e.g. the layers of each: 8,8,8,6; "
    "or a model of conf/model, e.g. smollm2_135m: its work on each stage as it is cut",
    "backward": "the same (default: twice the forward)",
    "update": "time of an update on a stage (default: 0)",
    "communication": "time until a result is there on the next stage (default: 0)",
    "format": "text, json",
    "COLUMN": "only trials with this value in a column: num_parameters=418752, batch_size=16",
}
MOST = {"stages": 256, "microbatches": 4_096, "updates": 10**9}
"""The largest numbers; a pipeline of these stages is simulated within some seconds."""
LENGTH = 1024
"""Tokens of a sequence, for the attention of a model that `forward` names."""
LONGEST = 1e9
"""The largest time, in any unit."""


def main(given: Given) -> None:
    """Prints the advice; raises BadInput."""
    from analysis.advice.advise import advise
    from analysis.table.load import load
    from analysis.table.records import records
    from analysis.table.selection import fulfilling

    stages, microbatches = (
        count(having(given, key, KEYS), key, 0, MOST[key]) for key in ("stages", "microbatches")
    )
    updates = count(given, "updates", 0, MOST["updates"])
    form = take_choice(given, "format", ("text", "json"))
    optimizer = having(given, "optimizer", KEYS)["optimizer"]
    store = pulled(given.get("results", "results"))
    conditions = {key: value for key, value in given.items() if key not in KEYS}
    costs, activations = _costs(given, stages), _times(given, "activations", 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        trials = fulfilling(load(store), conditions)
        advice = advise(
            trials,
            optimizer=optimizer,
            stages=stages,
            microbatches=microbatches,
            updates=updates or None,
            costs=costs,
            activations=activations[0] if activations else None,
            records=records(store),
        )
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)
    is_json = form == "json"
    print(json.dumps(plain(asdict(advice)), indent=1, ensure_ascii=False) if is_json else advice)


def _costs(given: Mapping[str, str], stages: int) -> Any:
    from analysis.advice.speed import Costs

    forward = _work(given, stages) or _times(given, "forward", stages) or (1.0,) * stages
    backward = _times(given, "backward", stages) or tuple(2 * time for time in forward)
    if not min(*forward, *backward) > 0:
        raise BadInput("forward", given.get("forward", "1"), "must be above 0, as the backward")
    single = (_times(given, key, 1) or (0.0,) for key in ("update", "communication"))
    [update], [communication] = single
    return Costs(forward, backward, update, communication)


def _work(given: Mapping[str, str], stages: int) -> tuple[float, ...]:
    """Return the work of each stage of the model that `forward` names over the mean; empty if it
    names none."""
    path = CONF / "model" / f"{given.get('forward')}.yaml"
    if path not in yamls("model"):
        return ()
    model = build(yaml.safe_load(path.read_text()))
    try:
        work = model.work(model.split(stages, LENGTH), LENGTH)
    except BadInput as error:
        raise BadInput("stages", stages, error.allowed) from None
    return tuple(stages * stage / sum(work) for stage in work)


def _times(given: Mapping[str, str], key: str, num: int) -> tuple[float, ...]:
    """Return `num` times, all alike if one number is given; empty if the key is not given."""
    if key not in given:
        return ()
    times = tuple(map(number, given[key].split(",")))
    if len(times) not in (1, num) or not all(0 <= time <= LONGEST for time in times):
        allowed = f"must be a number from 0 to {LONGEST:g}"
        allowed += f", or {num}, one per stage" if num > 1 else ""
        raise BadInput(key, given[key], allowed)
    return times * num if len(times) == 1 else times
