"""What a plan says before it runs: what the sweeps cost, and which gap their seeds detect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sweeps.plan.pricing import Priced
from sweeps.plan.sweep_plan import SweepPlan
from sweeps.request.command_line import Request

HALF_WIDTH = 0.01
"""Nats per token: a plan says how many seeds give this precision, as small as the gaps of robust
optimizers."""


def summary(asked: Request, sweeps: Sequence[SweepPlan]) -> str:
    """The lines of a plan."""
    lines = [*Priced(asked, sweeps).lines()]
    for sweep in sweeps:
        told = [*sweep.estimate, *(sweep.remarks if asked.dry_run else [])]
        if len(sweeps) == 1:
            lines += [*_precision(asked.results, sweep), *told]
        else:
            lines += [f"{sweep.label}: {' '.join(line.split())}" for line in told]
    return "\n".join(lines)


def _precision(results: Path, sweep: SweepPlan) -> Iterator[str]:
    """The line of a plan on the gap that the sweep's seeds detect.

    In nats per token, by the spread of its pairs in the store; in units of the spread without any.
    """
    from analysis.statistics.power import detectable_gap, seeds_needed, spreads

    n = len(sweep.sweep.seeds)
    if n < 2:
        yield "power     1 seed gives no interval: no gap can be told from chance"
        return
    found = spreads(results, sweep.compared) if (results / "trials").is_dir() else {}
    in_sd = f"power     {n} seeds detect a mean gap of {detectable_gap(1, n):.3g} sd (80 % power)"
    if not found:
        yield (
            f"{in_sd}; no sd of paired gaps is measured here yet "
            f"(half a sd as the interval's half-width needs {seeds_needed(1, 0.5)} seeds)"
        )
        return
    optimizers = [
        f"{optimizer} {detectable_gap(spread.sd, n):.2g} (sd {spread.sd:.2g} of {spread.num_pairs} "
        f"pairs; {seeds_needed(spread.sd, HALF_WIDTH)} seeds for ±{HALF_WIDTH:g})"
        for optimizer, spread in found.items()
    ]
    yield f"{in_sd}; by what is measured here, in nats per token: {', '.join(optimizers)}"
