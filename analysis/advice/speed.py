"""How long a batch takes in the steady state of a pipeline, by simulating its schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from trainer.schedules.operations import Schedule
from trainer.schedules.recipes import pipedream_2bw, sync, zero_bubble_h1
from trainer.schedules.simulate import simulate

FLUSHED: Mapping[str, Callable[..., Schedule]] = {"1F1B": sync, "ZB-H1": zero_bubble_h1}
"""The synchronous pipelines that 2BW is compared with: they keep as few activations."""
TWO_BUFFERED = partial(pipedream_2bw, synchronous_start=0, synchronous_cooldown=0)
SETTLED = 2
"""Batches until the pipeline is in its steady state; its time is measured over as many more."""


@dataclass(frozen=True)
class Costs:
    """Times of one microbatch on each stage, in any unit: speed-ups are ratios."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    """Where it is split into halves (ZB-H1), each takes half of this."""
    update: float = 0.0
    communication: float = 0.0
    """Until a result arrives at the next stage, which computes meanwhile."""


def equal_stages(num_stages: int) -> Costs:
    """The costs assumed of unmeasured stages: all equal, the backward twice the forward."""
    return Costs((1.0,) * num_stages, (2.0,) * num_stages)


def speed_ups(costs: Costs, num_microbatches: int) -> dict[str, float]:
    """Batches of 2BW in the time of one, by the name of the flushed schedule.

    Raises BadInput where 2BW cannot run: m < p − 1.
    """
    asynchronous = batch_time(TWO_BUFFERED, costs, num_microbatches)
    return {
        name: batch_time(schedule, costs, num_microbatches) / asynchronous
        for name, schedule in FLUSHED.items()
    }


def fastest(speeds: Mapping[str, float]) -> str:
    """The flushed schedule over which 2BW gains least."""
    return min(speeds, key=lambda name: speeds[name])


def batch_time(schedule: Callable[..., Schedule], costs: Costs, num_microbatches: int) -> float:
    """The time that one more batch adds to a long run, in the unit of the costs."""
    by_rank = [
        {"F": forward, "B": backward, "I": backward / 2, "W": backward / 2, "U": costs.update}
        for forward, backward in zip(costs.forward, costs.backward, strict=True)
    ]
    long = schedule(2 * SETTLED, num_stages=len(costs.forward), num_microbatches=num_microbatches)
    short, whole = (
        simulate(long.operations(0, last), by_rank, costs.communication).makespan
        for last in (SETTLED, 2 * SETTLED)
    )
    return (whole - short) / SETTLED
