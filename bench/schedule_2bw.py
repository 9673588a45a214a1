"""Schedules of torch.distributed.pipelining and `Schedule2BW` on stages that sleep.

    python -m bench.schedule_2bw [stages=4] [microbatches=4] [rounds=5]

Ranks sleep in place of computing, so that two cores are enough; messages, sums over the ranks and
updates are real. Each schedule stands beside the ideal: its order, in which messages, sums and
updates take no time. 2BW, of `Schedule2BW` and of our own executor, stands beside its simulation
too, with the mean time of each rank's operations and the median time of a message of the same run.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch.distributed as dist

from bench.sleepers import BATCHES, Delayed, Flushed, OfTrials, contenders
from bench.timing import WARM_UPS, medians_of_all, options
from pipegap.trainer.ranks.groups import Gang, collect
from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.schedules.recipes import pipedream_2bw
from pipegap.trainer.tracing.trace import Clock, Spans, between, simulated
from tests.support.ranks import Run, Send, on_ranks

FORWARD = 0.010
"""Seconds of a rank's forward; its backward takes as long for inputs, and again for weights."""
OF_TRIALS = "runner=pipelined of trials"


def makespan(order: Mapping[int, Sequence[Any]], stages_per_rank: int) -> float:
    """Seconds of a flushed batch in torch's order, where messages and updates take no time."""
    part = FORWARD / stages_per_rank
    takes = {"F": part, "I": part, "W": part, "B": 2 * part}
    last = stages_per_rank * len(order) - 1
    ends: dict[tuple[str, int, int], float] = {}
    waiting = {
        rank: [a for a in actions if a and (a.sub_actions or a.computation_type.value in takes)]
        for rank, actions in order.items()
    }
    free = dict.fromkeys(order, 0.0)
    while any(waiting.values()):
        for rank, actions in waiting.items():
            while actions and (start := _ready(actions[0], ends, last)) is not None:
                for one in actions[0].sub_actions or [actions[0]]:
                    free[rank] = max(free[rank], start) + takes[one.computation_type.value]
                    key = "I" if one.computation_type.value == "B" else one.computation_type.value
                    ends[key, one.stage_index, one.microbatch_index] = free[rank]
                actions.pop(0)
    return max(free.values())


def _ready(action: Any, ends: Mapping[tuple[str, int, int], float], last: int) -> float | None:
    """When the action may start; None while something that it needs has no end yet."""
    needed: list[tuple[str, int, int]] = []
    for one in action.sub_actions or [action]:
        kind, stage, i = one.computation_type.value, one.stage_index, one.microbatch_index
        if kind == "F" and stage > 0:
            needed.append(("F", stage - 1, i))
        if kind in "BI":
            needed.append(("I", stage + 1, i) if stage < last else ("F", stage, i))
    if any(key not in ends for key in needed):
        return None
    return max((ends[key] for key in needed), default=0.0)


def compare(gang: Gang, send: Send, m: int, rounds: int) -> None:
    """Times all contenders in turn; the recording rank sends medians and simulations."""
    p = dist.get_world_size()
    shape: dict[str, Any] = {"num_stages": p, "num_microbatches": m}
    phases: dict[str, Any] = {"synchronous_start": 0, "synchronous_cooldown": 0}
    order = partial(pipedream_2bw, BATCHES * (rounds + WARM_UPS), **shape, **phases)
    made = contenders(gang, p, m, FORWARD)
    trials = OfTrials(gang, order(), FORWARD)
    runs: dict[str, Run] = {name: contender.run for name, contender in made.items()}
    seconds = medians_of_all(gang, {**runs, OF_TRIALS: trials.run}, rounds)
    flushes = 3 * FORWARD * (p - 1)
    ideal = {
        name: BATCHES * makespan(c.schedule.pipeline_order, len(c.stages))
        if len(c.stages) > 1
        else 3 * FORWARD * BATCHES * m + flushes * (BATCHES if isinstance(c, Flushed) else 1)
        for name, c in made.items()
    }
    ideal[OF_TRIALS] = ideal["Schedule2BW"]
    clocks = {
        name: (c.schedule._clock, order(slack="slack" in name))
        for name, c in made.items()
        if isinstance(c, Delayed)
    }
    clocks[OF_TRIALS] = trials.executor._clock, order()
    own = {name: of_own_simulation(gang, *clock) for name, clock in clocks.items()}
    if gang.records:
        send((p, m, seconds, ideal, own))


def of_own_simulation(gang: Gang, clock: Clock, schedule: Schedule) -> float:
    """Median throughput of the runs after warming up, as a share of their own simulations'.

    0 on ranks that do not record.
    """
    shares = [0.0]
    if spans := [*collect(gang, [clock.spans])]:
        runs = pairwise(range(WARM_UPS * BATCHES, schedule.num_updates + 1, BATCHES))
        shares = [_of_simulation(between(spans, *run), schedule, *run) for run in runs]
    return median(shares)


def _of_simulation(spans: Spans, schedule: Schedule, first: int, last: int) -> float:
    passes = [span for of_rank in spans for span in of_rank if span.kind in "FBU"]
    measured = max(span.end for span in passes) - min(span.start for span in passes)
    return simulated(spans, schedule, first, last).makespan / measured


Times = dict[str, float]
Message = tuple[int, int, Times, Times, Times]


def show(message: Message) -> None:
    """Prints the lines of one shape."""
    p, m, seconds, ideal, own = message
    for name, measured in seconds.items():
        ratio, expected = (of["Schedule1F1B"] / of[name] for of in (seconds, ideal))
        of_own = f"{own[name]:.3f}" if name in own else ""
        print(
            f"| {p} | {m} | {name} | {measured * 1e3:.0f} | {ideal[name] / measured:.3f} "
            f"| {of_own} | {ratio:.2f} | {expected:.2f} |"
        )


def main() -> None:
    """Prints the table."""
    given = options(stages=4, microbatches=4, rounds=5)
    print(f"| p | m | | ms for {BATCHES} batches | throughput / ideal ", end="")
    print("| / own simulation | Schedule1F1B / this | ideal |\n" + "| --- " * 8 + "|")
    on_ranks(compare, (given.microbatches, given.rounds), show, num_stages=given.stages)


if __name__ == "__main__":
    main()
