"""What slack for messages, and chunks, do for 2BW: its time over its work, simulated.

    python -m bench.slack [stages=8] [microbatches=16]

Nothing is measured: p equal ranks, a backward takes two forwards, an update nothing. Every message
takes a share of a forward, while both of its ranks compute. `python -m bench.bubbles slack=true`
measures two ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from trainer.schedules.operations import Schedule
from trainer.schedules.orders import interleaved
from trainer.schedules.recipes import dualpipe_v, pipedream_2bw, sync, zero_bubble_v
from trainer.schedules.simulate import Costs, steady

MESSAGES = (0.0, 0.05, 0.2, 0.5, 1.0, 1.5)
NUM_CHUNKS = 2
FREE = partial(pipedream_2bw, 2, synchronous_start=0, synchronous_cooldown=0)


def schedules(p: int, m: int) -> Mapping[str, Schedule]:
    """By name. Interleaved 2BW is no choice of a trial: see bench/README.md."""
    chunks = FREE(num_stages=p * NUM_CHUNKS, num_microbatches=max(m, p * NUM_CHUNKS))
    return {
        "1F1B": sync(2, num_stages=p, num_microbatches=m),
        "ZB-V": zero_bubble_v(2, num_stages=p, num_microbatches=m),
        "DualPipeV": dualpipe_v(2, num_stages=p, num_microbatches=m),
        "2BW": FREE(num_stages=p, num_microbatches=m),
        "2BW, slack": FREE(num_stages=p, num_microbatches=m, slack=True),
        "interleaved 2BW, two chunks": replace(
            chunks, order=interleaved, num_microbatches=m, num_chunks=NUM_CHUNKS
        ),
    }


def costs(schedule: Schedule) -> list[Costs]:
    """Of each rank's operations; those of a chunk are shorter."""
    whole = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0, "U": 0.0}
    of_chunk = {kind: time / schedule.num_chunks for kind, time in whole.items()}
    return [of_chunk] * schedule.num_ranks


def row(schedule: Schedule) -> str:
    """Cells of the table: a time for each message, and the activations kept at most."""
    times = [steady(schedule, costs(schedule), message) for message in MESSAGES]
    ratios = [time / (3 * schedule.num_microbatches) for time, _ in times]
    _, start = times[0]
    kept = max(start.peak_activations(rank) for rank in range(schedule.num_ranks))
    return " | ".join([*(f"{of:.3f}" for of in ratios), f"{kept / schedule.num_chunks:g}"])


def main() -> None:
    """Prints the table."""
    given = {"stages": "8", "microbatches": "16", **dict(w.split("=") for w in sys.argv[1:])}
    heads = [f"{message:g}" for message in MESSAGES]
    print(f"| message, in forwards | {' | '.join(heads)} | activations, in microbatches |")
    print("| --- " * (len(heads) + 2) + "|")
    for name, schedule in schedules(int(given["stages"]), int(given["microbatches"])).items():
        print(f"| {name} | {row(schedule)} |")


if __name__ == "__main__":
    main()
