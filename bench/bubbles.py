"""The throughput of two ranks, one core each, against a simulation with their measured times.

    python -m bench.bubbles [rounds=5] [slack=true]

Both schedules run in the same processes, the clip active at every update. The simulator is given
the mean time of each rank's F, B and U and the median time of a message, of the very same run. With
slack 2BW runs its forwards earlier, so that messages keep nobody waiting.
"""

import sys
from collections.abc import Mapping, Sequence
from statistics import median

from bench.ranks import RANKS, Send, Traced, TracedRun, in_turn, on_ranks, prepare
from trainer.executors.gradients import Update
from trainer.parts import build_pipelined
from trainer.ranks.groups import Gang

MICROBATCHES, MICROBATCHES_A_RUN = (2, 4, 8), 32


def contender(gang: Gang, m: int, *words: str) -> Traced:
    """A schedule with m microbatches on this rank, with an active clip."""
    config, parts = prepare(m, *words, "clip_norm=0.01", "trace=true")
    executor = build_pipelined(config, parts, gang)
    return Traced(gang, parts.schedule, executor, MICROBATCHES_A_RUN // m, _assert_clipped)


def _assert_clipped(update: Update) -> None:
    assert update.grad_norm > 0.01


def compare(gang: Gang, send: Send, rounds: int, schedules: Mapping[str, Sequence[str]]) -> None:
    """Times each number of microbatches, alternating between the two schedules."""
    for m in MICROBATCHES:
        contenders = {name: contender(gang, m, *words) for name, words in schedules.items()}
        runs = in_turn(contenders, rounds)
        if gang.records:
            send((m, runs))


def row(m: int, runs: Mapping[str, Sequence[TracedRun]]) -> str:
    """A line of the table."""
    flushed, delayed = runs.values()
    pairs = zip(flushed, delayed, strict=True)
    speed_up = median(sync.measured / delay.measured for sync, delay in pairs)
    waits = median(max(run.update_waits) / run.measured for run in delayed)
    return (
        f"| {m} | {_cells(flushed)} | {_cells(delayed)} "
        f"| {speed_up:.2f} | {(m + RANKS - 1) / m:.2f} | {waits:.2%} |"
    )


def _cells(runs: Sequence[TracedRun]) -> str:
    """Cells of the table: the time, and the throughput relative to the simulated one."""
    milliseconds = median(run.measured for run in runs) / MICROBATCHES_A_RUN * 1e3
    return f"{milliseconds:.1f} | {median(run.simulated / run.measured for run in runs):.3f}"


def main() -> None:
    """Prints the table."""
    given = dict(word.split("=") for word in sys.argv[1:])
    print(
        "| m | flushed 1F1B, ms per microbatch | throughput / simulated | 2BW, ms per microbatch "
        "| throughput / simulated | 2BW over flushed | ideal, (m + p − 1) / m | waits before U |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rounds = int(given.get("rounds", "5"))
    slack = f"pipeline.slack={given.get('slack', 'false')}"
    schedules = {"flushed": ("sync",), "2BW": ("pipedream_2bw", slack)}
    on_ranks(compare, (rounds, schedules), lambda runs: print(row(*runs), flush=True))


if __name__ == "__main__":
    main()
