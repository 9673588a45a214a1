"""CPU time of the main thread for a microbatch, by `Schedule2BW` and by torch's Schedule1F1B.

    python -m bench.overhead [stages=1] [microbatches=4] [layers=2] [rounds=100]

Stages of small layers, so that the host's part is the larger one; every batch has an active clip by
the norm of the whole model and a step of AdamW. Ranks, one process each, train by turns.
"""

from functools import partial
from statistics import median

from torch import nn
from torch.distributed.pipelining import Schedule1F1B

from bench.ranks import Send, on_ranks
from bench.sleepers import BATCHES, WIDTH, Delayed, Flushed
from bench.timing import WARM_UPS, in_turn, options, thread_seconds_of
from trainer.ranks.groups import Gang
from trainer.torch_pipelining import Schedule2BW

Row = tuple[int, str, float, float]
"""Rank, schedule, ms per microbatch, and over Schedule1F1B's."""


def compare(gang: Gang, send: Send, m: int, layers: int, rounds: int) -> None:
    """Times all schedules in turn; every rank sends a row for each."""

    def stage() -> nn.Module:
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))

    given = [gang.place], m, stage
    delayed = partial(Schedule2BW, error_feedback=0.0)
    made: dict[str, Flushed | Delayed] = {
        "Schedule1F1B": Flushed(Schedule1F1B, *given),
        "Schedule2BW": Delayed(delayed, *given),
        "Schedule2BW with Error Feedback": Delayed(Schedule2BW, *given),
    }
    runs = {name: contender.run for name, contender in made.items()}
    calls = in_turn(runs, rounds + WARM_UPS, thread_seconds_of)
    counted = {name: seconds[WARM_UPS:] for name, seconds in calls.items()}
    for name, seconds in counted.items():
        ratios = [a / b for a, b in zip(seconds, counted["Schedule1F1B"], strict=True)]
        send((gang.rank, name, median(seconds) / BATCHES / m * 1e3, median(ratios)))


def show(row: Row) -> None:
    """Prints a line of the table."""
    rank, name, ms, ratio = row
    print(f"| {rank} | {name} | {ms:.3f} | {ratio:.3f} |", flush=True)


def main() -> None:
    """Prints the table."""
    given = options(stages=1, microbatches=4, layers=2, rounds=100)
    print("| rank | | ms per microbatch | / Schedule1F1B |\n| --- | --- | --- | --- |")
    arguments = given.microbatches, given.layers, given.rounds
    on_ranks(compare, arguments, show, num_stages=given.stages)


if __name__ == "__main__":
    main()
