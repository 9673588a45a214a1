"""The advice of a report's first screen: of each optimizer, whether the delay pays."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from analysis.advice.advise import advise
from trainer.base.errors import BadInput

STAGES, MICROBATCHES = 4, 8
"""The pipeline that the first screen asks about; the command beside it asks about another one."""


class Recommendation(NamedTuple):
    """The verdict for one optimizer, why, and the command that says more."""

    optimizer: str
    word: str
    why: str
    command: str


def recommendations(trials: pd.DataFrame, results: str) -> list[Recommendation]:
    """One per optimizer that was also trained with a delay."""
    return [*_each(trials, results)]


def _each(trials: pd.DataFrame, results: str) -> Iterator[Recommendation]:
    for optimizer, of_optimizer in trials.groupby("optimizer"):
        if of_optimizer["arm"].nunique() < 2:
            continue
        pipeline = (
            f"stages={STAGES} microbatches={MICROBATCHES} {shlex.quote(f'results={results}')}"
        )
        asked = shlex.quote(f"optimizer={optimizer}")
        command = f"python -m analysis advise {asked} {pipeline}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # they are remarks of the report
                found = advise(
                    of_optimizer,
                    optimizer=str(optimizer),
                    stages=STAGES,
                    microbatches=MICROBATCHES,
                )
        except BadInput:  # trials that cannot be compared: a remark says why
            continue
        yield Recommendation(str(optimizer), found.verdict.word, found.verdict.why, command)
