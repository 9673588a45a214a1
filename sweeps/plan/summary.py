"""What the seeds of a sweep can show: a line of its plan."""

from __future__ import annotations

from pathlib import Path

from sweeps.standing import Standing

HALF_WIDTH = 0.01
"""Nats per token, the precision whose seeds a plan says: gaps of robust optimizers are as small."""


def precision(results: Path, sweep: Standing) -> str:
    """The gap that its seeds detect, by the spread of its pairs in the store, or in units of it."""
    from analysis.power import detectable_gap, seeds_needed, spreads

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
    return f"{in_sd}; by what is measured here, in nats a token: {', '.join(optimizers)}"
