"""The advice for all optimizers of a store, one row per optimizer and synchronous pipeline; and the
lines of code that put 2BW in the place of 1F1B."""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from pipegap.analysis.advice.advice import Advice
from pipegap.analysis.advice.advise import advise
from pipegap.analysis.advice.evidence import FEEDBACK, PLAIN
from pipegap.analysis.advice.verdict import GO
from pipegap.analysis.table import names
from pipegap.analysis.table.text import aligned

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
CODE = """
def update(): schedule.clip_grad_norm_(max_norm); optimizer.step(); scheduler.step()
schedule = pipegap.Schedule2BW(stage, {microbatches}, loss_fn, update=update, error_feedback={by:g})
with schedule.drained(): evaluate(); save()  # between batches, wherever you do so
"""


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


def handover(answers: Sequence[Advice]) -> str:
    """Return three lines of Python for the first advice that says go against a pipeline, under a
    line that says where they belong; the empty string if none says so.

    λ is that of the runs that decided, against the slowest of these pipelines.
    """
    return next((lines for answer in answers if (lines := _lines(answer))), "")


def _lines(advice: Advice) -> str:
    rivals = [each for each in advice.rivals.values() if each.decision.word == GO]
    won = {each.speed_up: each.same_time.arm for each in rivals if each.same_time}
    if not won or advice.evidence is None:
        return ""
    coefficients = {gap.arm: gap.coefficient for gap in advice.evidence.gaps}
    where = "on torch.distributed.pipelining, in place of Schedule1F1B (docs/pipeline.md)"
    code = CODE.format(microbatches=advice.microbatches, by=coefficients[won[max(won)]])
    lines = [f"to go with {names.optimizer(advice.optimizer)} {where}:", *code.split("\n")[1:-1]]
    return "\n  ".join(lines)
