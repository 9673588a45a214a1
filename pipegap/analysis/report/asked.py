"""What a sweep asks of its report: which arm of a search is best, and what it advises."""

import shlex
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import pandas as pd

from pipegap.analysis.advice.advice import heading, headline, ranking
from pipegap.analysis.advice.advise import advices, matrix
from pipegap.analysis.statistics.best import best
from pipegap.analysis.table.text import hanging, terminal_width
from pipegap.trainer.store.records import Record


class Pipeline(Protocol):
    """The pipeline that a sweep asks about."""

    @property
    def stages(self) -> int:
        """p"""

    @property
    def microbatches(self) -> int:
        """m"""


class Asked(NamedTuple):
    """The questions of a sweep."""

    pipeline: Pipeline | None
    """Of its advice, if it asks for any."""
    seeds: Sequence[int] | None
    """By which its search chose settings, if it has a search."""


def answers(
    question: Asked, trials: pd.DataFrame, records: Sequence[Record], store: str, out: Path
) -> Iterator[str]:
    """Yield the answers in lines: `trials` are those of the sweep, `records` those of the `store`.

    Writes best.csv of a search to `out`. Nothing without a question, or a finished trial.
    """
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # remarks of the report
        if question.seeds is not None:
            yield from _best(trials, question.seeds, out)
        if question.pipeline is not None:
            yield from _advice(trials, question.pipeline, records, store)


def _best(trials: pd.DataFrame, seeds: Sequence[int], out: Path) -> Iterator[str]:
    table = best(trials, seeds)
    table.to_csv(out / "best.csv", index=False)
    for row in table[table["n"] > 0].to_dict("records"):
        name = " ".join(filter(None, [row["optimizer"], row["task"]]))
        yield (
            f"{name}: {row['arm']} at its best ({row['setting']}) minus sync at its own "
            f"({row['setting_sync']}): {row['gap']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}], "
            f"n {row['n']}"
        )


def _advice(
    trials: pd.DataFrame, pipeline: Pipeline, records: Sequence[Record], store: str
) -> Iterator[str]:
    """Yield the verdicts for each optimizer, and the command that shows what they rest on."""
    shape = {"stages": pipeline.stages, "microbatches": pipeline.microbatches}
    if advices_given := advices(trials, **shape, records=records):
        words = [*(f"{key}={value}" for key, value in shape.items()), f"results={store}"]
        width = terminal_width()
        lines = [
            *heading(advices_given),
            matrix(advices_given, width),
            *ranking(advices_given),
            *map(headline, advices_given),
        ]
        yield hanging("\n".join(lines), width)
        yield f"what this rests on: pipegap advise {shlex.join(words)}"
