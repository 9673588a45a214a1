"""What a plan says before it runs: what the sweeps cost, and which gap their seeds detect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sweeps.plan.pricing import price
from sweeps.plan.sweep_plan import SweepPlan, all_planned
from sweeps.request.command_line import Request

HALF_WIDTH = 0.01
"""Nats per token: a plan says how many seeds give this precision, as small as the gaps of robust
optimizers."""


def summary(asked: Request, sweeps: Sequence[SweepPlan]) -> str:
    """The lines of a plan."""
    num_asked = sum(len(sweep.planned) for sweep in sweeps)
    lines = [*price(asked, all_planned(sweeps), num_asked)]
    for sweep in sweeps:
        lines += [f"sweep     {sweep.label}"] if len(sweeps) > 1 else []
        lines += [_precision(asked.results, sweep), *sweep.estimate]
        lines += sweep.remarks if asked.dry_run else []
    return "\n".join(lines)


def _precision(results: Path, sweep: SweepPlan) -> str:
    """The line of a plan on the gap that the sweep's seeds detect.

    In nats per token, by the spread of its pairs in the store; in units of the spread without any.
    """
    from analysis.statistics.power import detectable_gap, seeds_needed, spreads

    n = len(sweep.sweep.seeds)
    if n < 2:
        return "power     1 seed gives no interval: no gap can be told from chance"
    found = spreads(results, sweep.compared) if (results / "trials").is_dir() else {}
    in_sd = f"power     {n} seeds detect a mean gap of {detectable_gap(1, n):.3g} sd (80 % power)"
    if not found:
        return (
            f"{in_sd}; no sd of paired gaps is measured here yet "
            f"(half a sd as the interval's half-width needs {seeds_needed(1, 0.5)} seeds)"
        )
    optimizers = [
        f"{optimizer} {detectable_gap(spread.sd, n):.2g} (sd {spread.sd:.2g} of {spread.num_pairs} "
        f"pairs; {seeds_needed(spread.sd, HALF_WIDTH)} seeds for ±{HALF_WIDTH:g})"
        for optimizer, spread in found.items()
    ]
    return f"{in_sd}; by what is measured here, in nats per token: {', '.join(optimizers)}"
