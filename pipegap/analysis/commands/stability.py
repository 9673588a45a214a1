"""Where a delay and its correction put the edge of stability, by theory: no store, no training.

e.g. pipegap stability optimizer=muon delay=2
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from pipegap.analysis.commands.words import amount, count, plain
from pipegap.trainer.base.cli import Given, take_choice
from pipegap.trainer.base.errors import BadInput

KEYS = {
    "optimizer": "which one (default: every one that the theory covers)",
    "correction": "which one (default: error_feedback)",
    "delay": "in updates (default: 1)",
    "k": "learning rate times curvature at which noise is compared (default: 0.1)",
    "updates": "how many are over, for optimizers with a schedule of their own (default: all)",
    "format": "text, json",
    "KEY": "of the two: optimizer.momentum=0.99, correction.coefficient=0.5",
}
LARGEST_K, MOST_UPDATES = 1e6, 1e9


def main(values: Given) -> None:
    """Prints one row per optimizer; raises BadInput."""
    from pipegap.analysis.theory import stability, table, title  # with scipy, which is slow

    delay = count(values, "delay", 1, 32, low=0)  # a larger one takes minutes
    if not (k := amount(values, "k", 0.1, 0, LARGEST_K)):  # at 0 no noise moves the weights
        raise BadInput("k", values["k"], "must be above 0")
    updates = amount(values, "updates", math.inf, 0, MOST_UPDATES, "a whole")
    form = take_choice(values, "format", ("text", "json"))
    correction = values.get("correction", "error_feedback")
    settings = [f"{key}={value}" for key, value in values.items() if key not in KEYS]
    rows = [
        stability((name, correction), *nodes, delay=delay, k=k, updates=updates)
        for name, nodes in _configs(values.get("optimizer"), correction, settings)
    ]
    if form == "json":
        ratios = ("sync_over_delayed", "corrected_over_delayed", "noise_removed")
        fields = [asdict(row) | {name: getattr(row, name) for name in ratios} for row in rows]
        print(json.dumps(plain(fields), indent=1))
    else:
        print(f"{title(rows[0])}\n{table(rows)}")


def _configs(
    optimizer: str | None, correction: str, settings: Sequence[str]
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield each optimizer with its settings and those of the correction, as trials get them."""
    from pipegap.analysis.theory import NONE
    from pipegap.trainer.config.compose import Composer
    from pipegap.trainer.config.identity import declared

    for word in settings:
        key, _, value = word.partition("=")
        if not key.startswith(("optimizer.", "correction.")):
            raise BadInput(key, value, "is not a key of this command, see --help")
    if optimizer is None and any(word.startswith("optimizer.") for word in settings):
        raise BadInput("optimizer", "", "must say whose settings these are")
    theories = {name: choice.theory for name, choice in declared("optimizer").items()}
    linear = [name for name, theory in theories.items() if theory and not theory.startswith(NONE)]
    # One that is asked for by name is not looked up: `stability` says why it has no filter.
    compose = Composer()
    for name in linear if optimizer is None else [optimizer]:
        config = compose([f"optimizer={name}", f"correction={correction}", *settings])
        yield name, (config["optimizer"], config["correction"])
