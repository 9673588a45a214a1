"""How near to the edges of stability a synchronous run trains, before any delayed one: the run is
made here, and leaves nothing behind."""

import json
import math
from collections.abc import Iterable
from typing import Any

from analysis.commands.words import count
from trainer.base.cli import Given, take_choice
from trainer.base.errors import BadInput

KEYS = {
    "every": "updates between two measurements (default: a quarter of the run)",
    "tokens": "of the validation split, over which the curvature is averaged (default: 2048)",
    "delay": "in updates (default: 1)",
    "format": "text, json",
    "KEY": "of the run, as of python -m trainer: optimizer=adamw optimizer.lr=0.002 model=nano",
}
MOST_DELAY, MOST = 32, 10**9
FIXED = ("pipeline", "correction", "runner", "num_replicas", "resume_from", "out", "results")
SYNCHRONOUS = ("pipeline=sync", "correction=none", "runner=emulated")


def main(given: Given) -> None:
    """Prints each measurement when it is made, then what they say; raises BadInput."""
    form = take_choice(given, "format", ("text", "json"))
    delay, tokens = count(given, "delay", 1, MOST_DELAY), count(given, "tokens", 2048, MOST)
    every = count(given, "every", 0, MOST)
    config = _synchronous(given)
    from analysis.theory.standing import beside_limits
    from trainer.config.plan import plan_trial
    from trainer.sharpness import measured, require_covered

    require_covered(config["optimizer"])
    every = every or math.ceil(plan_trial(config).num_updates / 4)
    rows = beside_limits(config["optimizer"], measured(config, every, tokens), delay)
    if form == "json":
        print(json.dumps([row.plain() for row in rows], indent=1))
    else:
        _print_text(rows, delay)


def _synchronous(given: Given) -> dict[str, Any]:
    """Return the config of the run."""
    from trainer.config.compose import compose

    words = {key: value for key, value in given.items() if key not in KEYS}
    for key, value in words.items():
        if key.lstrip("+~").partition(".")[0] in FIXED:
            raise BadInput(key, value, "cannot be chosen: a synchronous run of one stage is made")
    return compose([*(f"{key}={value}" for key, value in words.items()), *SYNCHRONOUS])


def _print_text(rows: Iterable[Any], delay: int) -> None:
    from analysis.theory.standing import standing_head, standing_row, where_it_stands

    print(standing_head(delay), flush=True)
    standings = []
    for standing in rows:
        standings.append(standing)
        print(standing_row(standing), flush=True)
    print(where_it_stands(standings, delay))
