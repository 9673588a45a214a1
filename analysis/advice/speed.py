"""How long a batch takes in the steady state of a pipeline, and how much a rank keeps meanwhile, by
simulating its schedule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from trainer.base.errors import BadInput
from trainer.schedules.operations import Schedule
from trainer.schedules.recipes import (
    dualpipe_v,
    interleaved_1f1b,
    pipedream_2bw,
    sync,
    zero_bubble_h1,
    zero_bubble_v,
)
from trainer.schedules.simulate import SETTLED, steady

NUM_CHUNKS = 2
"""Parts of the model per rank of interleaved 1F1B: as many as ZB-V has."""
FLUSHED: Mapping[str, Callable[..., Schedule]] = {
    "1F1B": sync,
    "interleaved 1F1B": partial(interleaved_1f1b, num_chunks=NUM_CHUNKS),
    "ZB-H1": zero_bubble_h1,
    "ZB-V": zero_bubble_v,
    "DualPipeV": dualpipe_v,
}
"""The synchronous pipelines that 2BW is compared with. All of them wait for the norm of the whole
gradient before an update, as 2BW does."""
TWO_BUFFERED = partial(pipedream_2bw, synchronous_start=0, synchronous_cooldown=0)
NEARLY = 1e-9
"""The rounding error of a number of microbatches or of a ratio."""


@dataclass(frozen=True)
class Costs:
    """Times of one microbatch on each rank, in any unit: speed-ups are ratios.

    A rank with several parts of the model (chunks) takes equally long for each of them.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    """Where it is split into halves (ZB-H1, ZB-V, DualPipeV), each takes half of this."""
    update: float = 0.0
    communication: float = 0.0
    """Until a result arrives at another rank, which computes meanwhile."""


@dataclass(frozen=True)
class Speed:
    """A pipeline in its steady state."""

    batch_time: float
    """What one more batch adds to a long run, in the unit of the costs."""
    activations: float
    """Of how many microbatches the rank that keeps most has activations at a time, each counted
    for all of its rank's layers, and until its weight gradients are made."""


def equal_stages(num_stages: int) -> Costs:
    """The costs assumed of unmeasured stages: all equal, the backward twice the forward."""
    return Costs((1.0,) * num_stages, (2.0,) * num_stages)


def flushed_speeds(costs: Costs, num_microbatches: int) -> dict[str, Speed]:
    """By name, the synchronous pipelines that can have so many microbatches."""
    speeds = {}
    for name, schedule in FLUSHED.items():
        try:
            speeds[name] = speed(schedule, costs, num_microbatches)
        except BadInput:  # interleaved 1F1B needs a multiple of p, DualPipeV 2p or more
            continue
    return speeds


def speed_up(name: str, costs: Costs, num_microbatches: int) -> float:
    """Batches of 2BW in the time of one of the synchronous pipeline `name`.

    Raises BadInput where 2BW cannot run (m < p − 1), or that pipeline.
    """
    flushed = speed(FLUSHED[name], costs, num_microbatches)
    return flushed.batch_time / speed(TWO_BUFFERED, costs, num_microbatches).batch_time


def speed_up_over_fastest(costs: Costs, num_microbatches: int) -> float:
    """Batches of 2BW in the time of one of the `fastest` pipeline that keeps no more than it."""
    own = speed(TWO_BUFFERED, costs, num_microbatches)
    others = flushed_speeds(costs, num_microbatches)
    return others[fastest(others, own.activations)].batch_time / own.batch_time


def fastest(speeds: Mapping[str, Speed], activations: float) -> str:
    """The fastest of the pipelines that keep `activations` at most; of equally fast ones the
    first. Raises BadInput if there is none."""
    fitting = [name for name, at in speeds.items() if at.activations <= activations + NEARLY]
    if not fitting:
        least = min(at.activations for at in speeds.values())
        raise BadInput("activations", f"{activations:g}", f"must be {least:g} or more")
    return min(fitting, key=lambda name: round(speeds[name].batch_time, 6))


def speed(schedule: Callable[..., Schedule], costs: Costs, num_microbatches: int) -> Speed:
    """The speed of a pipeline with one rank per stage of `costs`; raises BadInput as `schedule`."""
    ranks = len(costs.forward)
    settled = schedule(SETTLED, num_stages=ranks, num_microbatches=num_microbatches)
    by_rank = [
        {"F": forward, "B": backward, "I": backward / 2, "W": backward / 2, "U": costs.update}
        for forward, backward in zip(costs.forward, costs.backward, strict=True)
    ]
    by_chunk = [
        {kind: time / settled.num_chunks for kind, time in times.items()} for times in by_rank
    ]
    batch_time, start = steady(settled, by_chunk, costs.communication)
    peak = max(start.peak_activations(rank) for rank in range(ranks))
    return Speed(batch_time, peak / settled.num_chunks)
