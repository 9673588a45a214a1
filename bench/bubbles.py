"""The throughput of two ranks, one core each, against a simulation with their measured times.

    python -m bench.bubbles [rounds=5] [slack=true]

Both schedules run in the same processes, the clip active at every update. The simulator is given
the mean time of each rank's F, B and U and the median time of a message, of the very same run. With
slack 2BW runs its forwards earlier, so that messages keep nobody waiting.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import torch.distributed as dist

from bench.pipelining import CPU, RANKS, prepare
from bench.traced import Found, Traced, in_turn
from trainer.base.resources import reproducible
from trainer.executors.gradients import Update
from trainer.parts import build_pipelined
from trainer.ranks.groups import Gang, Heartbeat, joined
from trainer.ranks.spawn import run_gang
from trainer.ranks.supervisor import Parent

MICROBATCHES, MICROBATCHES_A_RUN = (2, 4, 8), 32


def contender(gang: Gang, m: int, *words: str) -> Traced:
    """This schedule on this rank."""
    config, parts = prepare(m, *words, "clip_norm=0.01", "trace=true")
    executor = build_pipelined(config, parts, gang)
    return Traced(gang, parts.schedule, executor, MICROBATCHES_A_RUN // m, _assert_clipped)


def _assert_clipped(update: Update) -> None:
    assert update.grad_norm > 0.01


def as_rank(
    store: dist.Store,
    heartbeat: Heartbeat,
    send: Callable[[object], None],
    rounds: int,
    schedules: Mapping[str, Sequence[str]],
) -> None:
    """Times each number of microbatches in turn, alternating between the two schedules."""
    with reproducible(0, 1), joined(store, heartbeat.rank, RANKS, 1, CPU, heartbeat, 600) as gang:
        for m in MICROBATCHES:
            contenders = {name: contender(gang, m, *words) for name, words in schedules.items()}
            found = in_turn(contenders, rounds)
            if gang.records:
                send((m, found))


def row(m: int, found: dict[str, Sequence[Found]]) -> str:
    """A line of the table."""
    flushed, delayed = found.values()
    pairs = zip(flushed, delayed, strict=True)
    speed_up = median(sync.measured / delay.measured for sync, delay in pairs)
    waits = median(max(one.update_waits) / one.measured for one in delayed)
    return (
        f"| {m} | {_of(flushed)} | {_of(delayed)} "
        f"| {speed_up:.2f} | {(m + RANKS - 1) / m:.2f} | {waits:.2%} |"
    )


def _of(found: Sequence[Found]) -> str:
    """Cells of the table: the time, and the throughput relative to the simulated one."""
    milliseconds = median(one.measured for one in found) / MICROBATCHES_A_RUN * 1e3
    return f"{milliseconds:.1f} | {median(one.simulated / one.measured for one in found):.3f}"


def main() -> None:
    """Prints the table."""
    given = dict(word.split("=") for word in sys.argv[1:])
    print(
        "| m | flushed 1F1B, ms per microbatch | throughput / simulated | 2BW, ms per microbatch "
        "| throughput / simulated | 2BW over flushed | ideal, (m + p − 1) / m | waits before U |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rounds = int(given.get("rounds", "5"))
    parent = Parent(lambda found: print(row(*found), flush=True), timeout=600)
    slack = f"pipeline.slack={given.get('slack', 'false')}"
    schedules = {"flushed": ("sync",), "2BW": ("pipedream_2bw", slack)}
    run_gang(as_rank, (rounds, schedules), RANKS, parent)


if __name__ == "__main__":
    main()
