"""Stores of trials that an advice is asked of."""

from pathlib import Path
from typing import Any

from analysis import advise, load
from analysis.advice.advice import Advice
from tests.support.synthetic_store import config, result, write


def add(
    store: Path, arm: str, losses: list[float | None], updates: int = 400, **correction: float
) -> None:
    """One trial per seed; its validation loss falls by 2 nats in a straight line over the run."""
    for seed, loss in enumerate(losses):
        trial = config(arm, seed=seed) | {"num_updates": updates}
        trial["correction"] |= correction
        changes = {} if loss is None else {"num_updates": updates}
        write(store, trial, result(trial, loss, **changes), curve=True)


def ask(store: Path, stages: int = 4, microbatches: int = 8, **more: Any) -> Advice:
    more = {"optimizer": "adamw", "stages": stages, "microbatches": microbatches} | more
    return advise(load(store), **more)
