"""What people read of a sweep: its plan before it runs, and the advice that it ends with."""

import shlex
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from sweeps.plan.pricing import PricedSweeps
from sweeps.plan.sweep_plan import SweepPlan
from sweeps.request.command_line import Request

HALF_WIDTH = 0.01
"""Nats per token: a plan says how many seeds give this precision, as small as the gaps of robust
optimizers."""


def summary(request: Request, sweeps: Sequence[SweepPlan]) -> str:
    """Return the lines of a plan: what the sweeps cost, and which gap their seeds detect."""
    lines = [*PricedSweeps(request, sweeps).lines()]
    for sweep in sweeps:
        way = [f"added     {word}" for word in sweep.added] + [*filter(None, [sweep.not_added])]
        told = [*way, *sweep.estimate, *(sweep.remarks if request.dry_run else [])]
        if len(sweeps) == 1:
            lines += [*_precision(request.results, sweep), *told]
        else:
            lines += [f"{sweep.label}: {' '.join(line.split())}" for line in told]
    return "\n".join(lines)


def _precision(results: Path, sweep: SweepPlan) -> Iterator[str]:
    """Yield the line of a plan on the gap that the sweep's seeds detect.

    In nats per token, by the spread of its pairs in the store; in units of the spread without any.
    """
    from analysis.statistics.power import detectable_gap, seeds_needed, spreads

    n = len(sweep.sweep.seeds)
    if n < 2:
        yield "power     1 seed gives no interval: no gap can be told from chance"
        return
    measured = spreads(results, sweep.compared) if (results / "trials").is_dir() else {}
    in_sd = (
        f"power     {n} seeds show a mean gap of {detectable_gap(1, n):.3g} standard deviations "
        "(sd) of the paired gaps in 80 % of cases"
    )
    if not measured:
        yield (
            f"{in_sd}; none is measured here yet "
            f"(an interval of ± half a sd needs {seeds_needed(1, 0.5)} seeds)"
        )
        return
    optimizers = [
        f"{optimizer} {detectable_gap(spread.sd, n):.2g} (sd {spread.sd:.2g} of {spread.num_pairs} "
        f"pairs; {seeds_needed(spread.sd, HALF_WIDTH)} seeds for ±{HALF_WIDTH:g})"
        for optimizer, spread in measured.items()
    ]
    yield f"{in_sd}; by what is measured here, in nats per token: {', '.join(optimizers)}"


def advice(results: Path, plan: SweepPlan, store: str) -> Iterator[str]:
    """Yield the verdicts for each optimizer, and the command that shows what they rest on.

    `store`: the name of the store `results` in that command. Nothing for a sweep without a
    question, or without a finished trial.
    """
    question = plan.sweep.advice
    if question is None or not (results / "trials").is_dir():
        return
    from analysis.advice.advice import headline
    from analysis.advice.rows import advices, matrix
    from analysis.table.load import load
    from analysis.table.records import records

    shape = {"stages": question.stages, "microbatches": question.microbatches}
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the report says them
        trials = load(results, [trial.plan.trial_id for trial in plan.planned])
        answers = advices(trials, **shape, records=records(results))
    if answers:
        words = [*(f"{key}={value}" for key, value in shape.items()), f"results={store}"]
        yield matrix(answers)
        yield from map(headline, answers)
        yield f"what this rests on: python -m analysis advise {shlex.join(words)}"
