"""What a sweep ends with: the answer to its question, by its own trials."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path

from sweeps.plan.sweep_plan import SweepPlan
from sweeps.request.schema import Question


def advice(results: Path, plan: SweepPlan, store: str) -> Iterator[str]:
    """The verdict for each optimizer, and the command that shows what it rests on.

    `store`: the name of the store `results` in that command. Nothing for a sweep without a
    question, or without a finished trial.
    """
    if plan.sweep.advice is None or not (results / "trials").is_dir():
        return
    from analysis.advice.advise import advise
    from analysis.advice.text import headline
    from analysis.table.load import load
    from analysis.table.records import records

    asked = plan.sweep.advice
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the report has said the same
        trials = load(results, [trial.plan.trial_id for trial in plan.planned])
        for optimizer in sorted({*trials["optimizer"].dropna()}):
            yield headline(
                advise(
                    trials,
                    optimizer=optimizer,
                    stages=asked.stages,
                    microbatches=asked.microbatches,
                    records=records(results),
                )
            )
    if not trials.empty:
        yield f"what this rests on: {_command(store, asked, trials['optimizer'].iloc[-1])}"


def _command(store: str, asked: Question, optimizer: str) -> str:
    words = [
        f"optimizer={optimizer}",
        f"stages={asked.stages}",
        f"microbatches={asked.microbatches}",
        f"results={store}",
    ]
    return f"python -m analysis advise {shlex.join(words)}"
