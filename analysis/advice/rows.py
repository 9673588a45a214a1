"""The advice for all optimizers of a store, one row per optimizer and synchronous pipeline."""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from analysis.advice.advice import Advice, aligned
from analysis.advice.advise import advise
from analysis.advice.evidence import FEEDBACK, PLAIN
from analysis.table import names

ROW = {
    "optimizer": "string",
    "rival": "string",
    "speedup": "float64",
    "verdict": "string",
    "difference": "float64",
    "low": "float64",
    "high": "float64",
    "n": "Int64",
    "evidence": "string",
}
"""Columns and their dtypes. `rival`: the synchronous pipeline; `speedup`: batches of 2BW in the
time of one of the rival; `verdict`: go, stay or not enough data; `difference`: loss of the delayed
run minus sync's in the same time, in nats per token, with its 95 % interval from `low` to `high`
over `n` seeds; `evidence`: the runs that are compared."""


def advices(trials: pd.DataFrame, **question: Any) -> list[Advice]:
    """Return the advice for each optimizer that was trained with a delay, `most_decided` first.

    `trials`: `load`'s table; `question`: the other arguments of `advise`, which says what is
    raised.
    """
    delayed = trials.loc[trials["family"].isin([PLAIN, FEEDBACK]), "optimizer"]
    optimizers = sorted({*delayed.dropna()})
    return most_decided(advise(trials, optimizer=name, **question) for name in optimizers)


def most_decided(answers: Iterable[Advice]) -> list[Advice]:
    """Sort by the number of rivals that a verdict is known against, most first, else as given."""
    return sorted(answers, key=lambda advice: -advice.num_decided)


def rows(answers: Iterable[Advice]) -> pd.DataFrame:
    """Return one row per advice and rival, in their order; columns: ROW."""
    table = [
        {"optimizer": answer.optimizer, **rival.row}
        for answer in answers
        for rival in answer.rivals.values()
    ]
    return pd.DataFrame(table, columns=[*ROW]).astype(ROW)


def verdict_rows(trials: pd.DataFrame, **question: Any) -> pd.DataFrame:
    """Return `rows` of the `advices` for all optimizers: a call with `trials`, `stages` and
    `microbatches` is enough."""
    return rows(advices(trials, **question))


def matrix(answers: Sequence[Advice]) -> str:
    """Return the verdicts in lines: one row per optimizer, one column per rival."""
    first = answers[0]
    heads = [f"{first.stages} stages, {first.microbatches} microbatches"]
    heads += [rival.label for rival in first.rivals.values()]
    verdicts = [[rival.row["verdict"] for rival in answer.rivals.values()] for answer in answers]
    optimizers = [names.optimizer(answer.optimizer) for answer in answers]
    lines = [[name, *words] for name, words in zip(optimizers, verdicts, strict=True)]
    return "\n".join(aligned([heads, *lines]))
