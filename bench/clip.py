"""What the global clip costs a pipeline without flushes: deferred, blocking, or left out.

    python -m bench.clip [rounds=7]

Four ranks that sleep in place of computing, so that two cores are enough; messages, sums
over the ranks, versions and updates are real. Each contender stands beside the simulation of its
schedule, with the mean time of its operations and messages in that run.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from statistics import median
from tempfile import gettempdir
from typing import Any

import torch
from torch import Tensor, nn

from bench.ranks import CPU, Send, Traced, TracedRun, in_turn, on_ranks
from trainer.corrections.none import NoCorrection
from trainer.executors.gradients import Clip
from trainer.executors.pipelined import Pipelined
from trainer.executors.reduction import Reduced, Reducer
from trainer.models.loss import cross_entropy
from trainer.optimizers.routing import kinds
from trainer.ranks.groups import Gang
from trainer.schedules.operations import Schedule
from trainer.schedules.recipes import pipedream_2bw, sync
from trainer.stages.stage import Stage
from trainer.tracing.clock import Clock

RANKS, BATCHES, UPDATES = 4, 12, 10_000
FORWARD, BACKWARD = 0.010, 0.020
PHASES: dict[str, Any] = {"synchronous_start": 0, "synchronous_cooldown": 0}
SHAPE = torch.Size([2, 8, 16])  # of a message: rows, length, width


class _Sleep(torch.autograd.Function):
    """The identity; its forward and backward sleep as long as those of a stage take."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        time.sleep(FORWARD)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(BACKWARD)
        return gradient


class Sleeper(nn.Module):
    """A stage of one small matrix; the first one takes tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(SHAPE[-1]))

    def forward(self, x: Tensor) -> Tensor:
        """[rows, length] or [rows, length, width] → [rows, length, width]."""
        x = x if x.is_floating_point() else nn.functional.one_hot(x, SHAPE[-1]).float()
        return _Sleep.apply(x @ self.weight)


class Blocking(Reducer):
    """Waits for the sums where the gradient is complete, as a blocking all-reduce does."""

    def launch(self, *arguments: Any) -> Future[Reduced]:
        """Returns sums that are complete."""
        pending = super().launch(*arguments)
        pending.result()
        return pending


class Apart(Reducer):
    """Sums nothing over the ranks, which is an update without a clip."""

    def _sum(self, tensors: Any, group: Any) -> None:
        pass


def executor(gang: Gang, schedule: Schedule, reducer: type[Reducer]) -> Pipelined:
    """This rank's part."""
    stage = Stage(
        module := Sleeper(),
        kinds(module),
        lambda parameters: torch.optim.SGD([weight for _, weight in parameters], lr=0.1),
        lambda lags: NoCorrection(0, lags),
        lambda t: 1.0,
        lag=schedule.lags[gang.place],
        tied=frozenset(),
        tied_lag=schedule.tied_lag,
        dtype=torch.float32,
    )
    m, clip, clock = schedule.num_microbatches, Clip(1e-3), Clock(CPU, True)
    tokens = torch.zeros(m * SHAPE[0], SHAPE[1] + 1, dtype=torch.long)
    spill = Path(gettempdir())
    parts = schedule, lambda t: tokens, cross_entropy, clip, gang, clock, SHAPE, spill
    made = Pipelined([stage], *parts)
    made._reducer = reducer(gang, {gang.place: stage}, schedule.num_stages, m, clip, clock)
    return made


def runner(gang: Gang, schedule: Schedule, reducer: type[Reducer]) -> Traced:
    """A contender that trains from drain to drain, `BATCHES` at a time."""
    return Traced(gang, schedule, executor(gang, schedule, reducer), BATCHES, lambda update: None)


def compare(gang: Gang, send: Send, rounds: int) -> None:
    """Times all contenders, for each number of microbatches."""
    for m in (4, 8):
        shape: dict[str, Any] = {"num_stages": RANKS, "num_microbatches": m}
        delayed = pipedream_2bw(UPDATES, **shape, **PHASES)
        contenders = {
            "2BW without a clip": runner(gang, delayed, Apart),
            "2BW, deferred clip": runner(gang, delayed, Reducer),
            "2BW, blocking clip": runner(gang, delayed, Blocking),
            "flushed 1F1B": runner(gang, sync(UPDATES, **shape), Reducer),
        }
        if m >= 2 * (RANKS - 1):
            ahead = pipedream_2bw(UPDATES, **shape, **PHASES, slack=True)
            contenders["2BW with slack, deferred clip"] = runner(gang, ahead, Reducer)
        runs = in_turn(contenders, rounds)
        if gang.records:
            send((m, runs))


def show(message: tuple[int, Mapping[str, Sequence[TracedRun]]]) -> None:
    """Prints the lines of one number of microbatches."""
    m, runs = message
    seconds = {name: median(run.measured for run in own) for name, own in runs.items()}
    for name, own in runs.items():
        ratio = seconds[name] / seconds["2BW without a clip"]
        speed = median(run.simulated / run.measured for run in own)
        print(f"| {m} | {name} | {seconds[name] * 1e3:.0f} | {ratio:.3f} | {speed:.3f} |")


def main() -> None:
    """Prints the table."""
    given = dict(word.split("=") for word in sys.argv[1:])
    print(f"| m | | ms for {BATCHES} batches | / without a clip | throughput / simulated |")
    print("| --- | --- | --- | --- | --- |")
    on_ranks(compare, (int(given.get("rounds", "7")),), show, num_stages=RANKS)


if __name__ == "__main__":
    main()
