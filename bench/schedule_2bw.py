"""Schedules of torch.distributed.pipelining and `Schedule2BW` on stages that sleep.

    python -m bench.schedule_2bw [stages=4] [microbatches=4] [rounds=5]
    python -m bench.schedule_2bw stages=2 clock=cpu

Ranks sleep in place of computing, so that two cores are enough; messages, sums over the ranks and
updates are real. Each schedule stands beside the ideal: our own recipe of it, in which messages,
sums and updates take no time. 2BW, of `Schedule2BW` and of our own executor, stands beside its
simulation too, with the mean time of each rank's operations and the median time of a message of
the same run. `microbatches` is a multiple of `stages`.

With `clock=cpu` it prints what `Schedule1F1B` and `Schedule2BW` take of the host: processor time of
all ranks and threads per microbatch, which sleeping takes none of; medians of alternating rounds.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from statistics import median
from tempfile import gettempdir
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from bench.pipeline import clip
from bench.timing import WARM_UPS, medians, medians_of_all, options, table
from pipegap.analysis.advice.speed import Costs, speed
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.executors.executor import Clip
from pipegap.trainer.executors.pipelined import Pipelined
from pipegap.trainer.models.layers import cross_entropy
from pipegap.trainer.optimizers.routing import kinds
from pipegap.trainer.ranks.groups import Gang, collect
from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.schedules.recipes import (
    dualpipe_v,
    interleaved_1f1b,
    pipedream_2bw,
    sync,
    zero_bubble_v,
)
from pipegap.trainer.stages.stage import Stage
from pipegap.trainer.torch_pipelining import Schedule2BW
from pipegap.trainer.tracing.trace import Clock, Spans, between, simulated
from tests.support.gangs import CPU, Run, Send, on_ranks

FORWARD = 0.010
"""Seconds of a rank's forward; its backward takes as long for inputs, and again for weights."""
BATCHES, WIDTH, CLIP = 8, 16, 1e-3
"""Batches from one drain to the next; features of a stage; a norm above which gradients are cut."""
ROWS, LENGTH = 2, 8
"""Of a microbatch of our own executor."""
BASELINE, OF_TRIALS = "Schedule1F1B", "runner=pipelined of trials"
FLUSHED: dict[str, Callable[..., Schedule]] = {
    BASELINE: sync,
    "ScheduleInterleaved1F1B": partial(interleaved_1f1b, num_chunks=2),
    "ScheduleZBVZeroBubble": zero_bubble_v,
    "ScheduleDualPipeV": dualpipe_v,
}
"""Schedules of torch → our recipe of each."""


class _Nap(torch.autograd.Function):
    """The identity; sleeps in its forward and in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_seconds: float, backward_seconds: float) -> Tensor:
        ctx.after = backward_seconds
        time.sleep(forward_seconds)
        return x.view_as(x)  # autograd wants another tensor than the input

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.after)
        return gradient, None, None


class SleepingStage(nn.Module):
    """A stage of one small matrix, […, width] → […, width]; the first one may take tokens […]."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.weight = seconds, nn.Parameter(torch.eye(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Sleeps; its backward sleeps for the input and for the weight.

        The first stage of a pipeline, whose input needs no gradient, sleeps as long as the others.
        """
        x = x if x.is_floating_point() else nn.functional.one_hot(x, WIDTH).float()
        weight = _Nap.apply(self.weight, 0.0, self.seconds * (1 if x.requires_grad else 2))
        return _Nap.apply(x, self.seconds, self.seconds) @ weight


class Contender:
    """A schedule on the stages of this rank, with the loop that its users write.

    Torch's schedules wait for the norm of the whole gradient after each batch; 2BW reads it a batch
    later, or not at all.
    """

    def __init__(
        self, make: Callable[..., Any], indices: Sequence[int], m: int, *, clips: bool = True
    ) -> None:
        parts = len(indices)
        modules = nn.ModuleList(SleepingStage(FORWARD / parts) for _ in indices)
        num_stages = dist.get_world_size() * parts
        stages = [
            PipelineStage(module, index, num_stages, CPU)
            for module, index in zip(modules, indices, strict=True)
        ]
        x = torch.ones(m, WIDTH)
        self.inputs = (x,) if any(stage.is_first for stage in stages) else ()
        self.target = x if any(stage.is_last for stage in stages) else None
        self.weights, self.clips = [*modules.parameters()], clips
        self.optimizer = torch.optim.AdamW(self.weights, lr=1e-3)
        self.schedule = make(stages if parts > 1 else stages[0], m, nn.MSELoss())
        self.is_late = isinstance(self.schedule, Schedule2BW)
        if self.is_late:
            self.schedule.update = self._update  # called when a gradient is due, a batch late

    def _update(self) -> None:
        if self.is_late and self.clips:
            self.schedule.clip_grad_norm_(CLIP)
        elif self.clips:
            clip(self.weights, CLIP)
        self.optimizer.step()

    def run(self) -> None:
        """Trains on some batches, to a drain."""
        for _ in range(BATCHES):
            self.schedule.step(*self.inputs, target=self.target, return_outputs=False)
            if not self.is_late:
                self._update()
                self.optimizer.zero_grad()
        if self.is_late:
            with self.schedule.drained():  # the last update is made here
                pass


class OfTrials:
    """2BW by our own executor, with plain SGD and a deferred clip."""

    def __init__(self, gang: Gang, schedule: Schedule) -> None:
        stage = Stage(
            module := SleepingStage(FORWARD),
            kinds(module),
            lambda parameters: torch.optim.SGD([weight for _, weight in parameters], lr=0.1),
            lambda lags: NoCorrection(0, lags),
            lambda t: 1.0,
            lag=schedule.lags[gang.place],
            tied=frozenset(),
            tied_lag=schedule.tied_lag,
            dtype=torch.float32,
        )
        tokens = torch.zeros(schedule.num_microbatches * ROWS, LENGTH + 1, dtype=torch.long)
        clip, clock, shape = Clip(CLIP), Clock(CPU, True), torch.Size([ROWS, LENGTH, WIDTH])
        parts = schedule, lambda t: tokens, cross_entropy, clip, gang, clock, shape
        self.executor = Pipelined([stage], *parts, Path(gettempdir()))
        self.firsts = count(0, BATCHES)

    def run(self) -> None:
        """Trains on some batches, to a drain."""
        first = next(self.firsts)
        self.executor.run(first, first + BATCHES, lambda update: None)


def contenders(gang: Gang, p: int, m: int) -> dict[str, Contender]:
    """All that is compared but trials; schedules with two stages per rank get halves."""
    rank = gang.place
    looped, folded = [rank, rank + p], [rank, 2 * p - 1 - rank]
    late = partial(Schedule2BW, trace=True)
    calls = {
        BASELINE: Contender(Schedule1F1B, [rank], m),
        "ScheduleInterleaved1F1B": Contender(ScheduleInterleaved1F1B, looped, m),
        "ScheduleZBVZeroBubble": Contender(ScheduleZBVZeroBubble, folded, m),
        "Schedule2BW": Contender(late, [rank], m),
        "Schedule2BW without a clip": Contender(late, [rank], m, clips=False),
        "Schedule2BW without Error Feedback": Contender(
            partial(late, error_feedback=0.0), [rank], m
        ),
    }
    if m >= 2 * p:  # torch refuses fewer
        calls["ScheduleDualPipeV"] = Contender(ScheduleDualPipeV, folded, m)
    if m > 2 * (p - 1):
        calls["Schedule2BW with slack"] = Contender(partial(late, slack=True), [rank], m)
    return calls


def ideal(name: str, p: int, m: int) -> float:
    """Seconds of BATCHES batches in which only passes take time."""
    if name in FLUSHED:
        costs = Costs((FORWARD,) * p, (2 * FORWARD,) * p)
        return BATCHES * speed(FLUSHED[name], costs, m).batch_time
    return 3 * FORWARD * (BATCHES * m + p - 1)  # 2BW fills the pipeline once, for all batches


def compare(gang: Gang, send: Send, m: int, rounds: int) -> None:
    """Times all contenders in turn; the recording rank sends medians and simulations."""
    p = dist.get_world_size()
    shape: dict[str, Any] = {"num_stages": p, "num_microbatches": m}
    phases: dict[str, Any] = {"synchronous_start": 0, "synchronous_cooldown": 0}
    order = partial(pipedream_2bw, BATCHES * (rounds + WARM_UPS), **shape, **phases)
    calls, trials = contenders(gang, p, m), OfTrials(gang, order())
    runs: dict[str, Run] = {name: contender.run for name, contender in calls.items()}
    seconds = medians_of_all(gang, {**runs, OF_TRIALS: trials.run}, rounds)
    # Private names: only here does anybody look at the times of single passes.
    clocks = {
        name: (contender.schedule._passes._clock, order(slack="slack" in name))
        for name, contender in calls.items()
        if contender.is_late
    }
    clocks[OF_TRIALS] = trials.executor._clock, order()
    simulated_seconds = {name: of_own_simulation(gang, *clock) for name, clock in clocks.items()}
    if gang.records:
        send((p, m, seconds, simulated_seconds))


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


def show(message: tuple[int, int, dict[str, float], dict[str, float]]) -> None:
    """Prints the lines of one shape."""
    p, m, seconds, simulated_seconds = message
    for name, measured in seconds.items():
        expected = ideal(name, p, m)
        ratio, of_ideal = seconds[BASELINE] / measured, ideal(BASELINE, p, m) / expected
        of_own = f"{simulated_seconds[name]:.3f}" if name in simulated_seconds else ""
        print(
            f"| {p} | {m} | {name} | {measured * 1e3:.0f} | {expected / measured:.3f} "
            f"| {of_own} | {ratio:.2f} | {of_ideal:.2f} |"
        )


def host(gang: Gang, send: Send, m: int, rounds: int) -> None:
    """Sends the median processor time per microbatch, of all ranks together."""
    calls = {
        BASELINE: Contender(Schedule1F1B, [gang.place], m),
        "Schedule2BW": Contender(Schedule2BW, [gang.place], m),
        "Schedule2BW without Error Feedback": Contender(
            partial(Schedule2BW, error_feedback=0.0), [gang.place], m
        ),
    }

    def of_all_ranks(run: Run) -> float:
        gang.heartbeat.beat()
        dist.barrier()  # a rank that waits for another one polls, which takes processor time
        started = time.process_time()
        run()
        cpu_seconds = torch.tensor(time.process_time() - started, dtype=torch.float64)
        dist.all_reduce(cpu_seconds)
        return cpu_seconds.item() / (BATCHES * m)

    runs: dict[str, Run] = {name: contender.run for name, contender in calls.items()}
    seconds = medians(runs, rounds, of_all_ranks)
    if gang.records:
        send(table(seconds, BASELINE, 1e-3, "CPU ms per microbatch"))


def main() -> None:
    """Prints the table."""
    values = options(stages=4, microbatches=4, rounds=5, clock="wall")
    if values.clock == "cpu":
        on_ranks(host, (values.microbatches, values.rounds), print, num_stages=values.stages)
        return
    print(f"| p | m | | ms for {BATCHES} batches | throughput / ideal ", end="")
    print(f"| / own simulation | {BASELINE} / this | ideal |\n" + "| --- " * 8 + "|")
    on_ranks(compare, (values.microbatches, values.rounds), show, num_stages=values.stages)


if __name__ == "__main__":
    main()
