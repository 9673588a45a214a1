"""What a sweep ends with: the answer to its question, by its own trials."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path

from analysis.objects.places import named
from sweeps.plan.sweep_plan import SweepPlan
from sweeps.request.schema import Question


def advice(results: Path, plan: SweepPlan) -> Iterator[str]:
    """The verdict for each optimizer, and the command that shows what it rests on.

    Nothing for a sweep without a question, or without a finished trial.
    """
    if plan.sweep.advice is None or not (results / "trials").is_dir():
        return
    from analysis.advice.advice import headline
    from analysis.advice.advise import advise
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
        yield f"what this rests on: {_command(results, asked, trials['optimizer'].iloc[-1])}"


def _command(results: Path, asked: Question, optimizer: str) -> str:
    words = [
        f"optimizer={optimizer}",
        f"stages={asked.stages}",
        f"microbatches={asked.microbatches}",
        f"results={named(results)}",
    ]
    return f"python -m analysis advise {shlex.join(words)}"
