"""How near to the edges of stability a synchronous run trains, before any delayed one: the run is
made here, and leaves nothing behind."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.commands.words import count
from analysis.table.text import markdown, markdown_row
from trainer.base.build import Node
from trainer.base.cli import Given, take_choice
from trainer.base.errors import BadInput

if TYPE_CHECKING:
    from trainer.sharpness import Sharpness  # torch is slow to import

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


class Standing(NamedTuple):
    """k = learning rate x curvature after `num_updates` updates, and the largest stable k there."""

    num_updates: int
    train_loss: float
    lr: float
    k: float
    sync: float
    delayed: float

    @property
    def of_sync(self) -> float:
        """k as a share of sync's limit."""
        return self.k / self.sync

    @property
    def of_delayed(self) -> float:
        """k as a share of the limit under the delay."""
        return self.k / self.delayed

    def plain(self) -> dict[str, Any]:
        """Its fields and both shares."""
        return {**self._asdict(), "of_sync": self.of_sync, "of_delayed": self.of_delayed}


def beside_limits(
    optimizer: Node, measured: "Iterable[Sharpness]", delay: int
) -> Iterator[Standing]:
    """Each measurement with the limits of the optimizer as it stands then.

    Raises BadInput for an optimizer that is not linear.
    """
    from analysis.theory.linear import linear
    from analysis.theory.recursion import SAME, Hooks, Loop, late
    from analysis.theory.stability import largest_stable  # scipy is slow to import

    linear(optimizer)  # refuses before anything is trained
    for sharpness in measured:
        filtered = linear(optimizer, sharpness.num_updates)
        sync, delayed = (
            largest_stable(Loop(filtered, hooks)) for hooks in (Hooks(SAME), Hooks(late(delay)))
        )
        yield Standing(
            sharpness.num_updates, sharpness.train_loss, sharpness.lr, sharpness.k, sync, delayed
        )


def standing_head(delay: int) -> str:
    """The head of a Markdown table of `standing_row`s."""
    heads = ("updates", "train loss", "lr", "k", "of sync's limit", f"of that of delay {delay}")
    return markdown(heads)


def standing_row(standing: Standing) -> str:
    """The row of a measurement."""
    cells = [f"{standing.num_updates:,}", f"{standing.train_loss:.3f}", f"{standing.lr:.3g}"]
    shares = [f"{share:.2f}" for share in (standing.k, standing.of_sync, standing.of_delayed)]
    return markdown_row([*cells, *shares])


def where_it_stands(standings: Sequence[Standing], delay: int) -> str:
    """Where the run stands, in words."""
    if not standings:
        return "the run diverged before it was measured"
    most = max(standings, key=lambda standing: standing.of_delayed)
    at = f"your run sits at {most.of_delayed:.2f} of the limit of a delay of {delay}"
    where = f"{at} at its sharpest (after {most.num_updates:,} updates)"
    if most.of_delayed <= 1:
        return f"{where}: within it, the delay acts on the noise alone"
    return (
        f"warning: {where}: a delayed run cannot train there, and has to stay where it is flatter"
    )


def main(given: Given) -> None:
    """Prints each measurement when it is made, then what they say; raises BadInput."""
    form = take_choice(given, "format", ("text", "json"))
    delay, tokens = count(given, "delay", 1, MOST_DELAY), count(given, "tokens", 2048, MOST)
    every = count(given, "every", 0, MOST)
    config = _synchronous(given)
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


def _print_text(rows: Iterable[Standing], delay: int) -> None:
    print(standing_head(delay), flush=True)
    standings = []
    for standing in rows:
        standings.append(standing)
        print(standing_row(standing), flush=True)
    print(where_it_stands(standings, delay))
