"""Stages that sleep in place of computing, and the schedules that train them."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
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
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.executors.gradients import Clip
from pipegap.trainer.executors.pipelined import Pipelined
from pipegap.trainer.models.loss import cross_entropy
from pipegap.trainer.optimizers.routing import kinds
from pipegap.trainer.ranks.groups import Gang
from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.stages.stage import Stage
from pipegap.trainer.torch_pipelining import Schedule2BW
from pipegap.trainer.tracing.trace import Clock
from tests.support.ranks import CPU

BATCHES, WIDTH, CLIP = 8, 16, 1e-3
"""Batches from one drain to the next; features of a stage; a norm above which gradients are cut."""
ROWS, LENGTH = 2, 8
"""Of a microbatch of our own executor."""


class _Nap(torch.autograd.Function):
    """The identity; sleeps in its forward and in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, before: float, after: float) -> Tensor:
        ctx.after = after
        time.sleep(before)
        return x.view_as(x)

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
    """A schedule on the stages of this rank, with the loop that its users write."""

    def __init__(
        self,
        make: Callable[..., Any],
        indices: Sequence[int],
        m: int,
        stage: Callable[[], nn.Module],
    ) -> None:
        p = dist.get_world_size() * len(indices)
        self.modules = [stage() for _ in indices]
        self.stages = [
            PipelineStage(module, index, p, CPU)
            for module, index in zip(self.modules, indices, strict=True)
        ]
        weights = [w for module in self.modules for w in module.parameters()]
        self.optimizer, self.weights = torch.optim.AdamW(weights, lr=1e-3), weights
        self.x = torch.ones(m, WIDTH)
        made = make(self.stages if len(indices) > 1 else self.stages[0], m, nn.MSELoss())
        self.schedule = made

    def step(self) -> None:
        """One batch."""
        is_first, is_last = (
            any(getattr(s, a) for s in self.stages) for a in ("is_first", "is_last")
        )
        inputs = (self.x,) if is_first else ()
        self.schedule.step(*inputs, target=self.x if is_last else None, return_outputs=False)


class Flushed(Contender):
    """Waits for the norm of the whole gradient after each batch."""

    def run(self) -> None:
        """Trains on some batches."""
        for _ in range(BATCHES):
            self.step()
            clip(self.weights, CLIP)
            self.optimizer.step()
            self.optimizer.zero_grad()


class Delayed(Contender):
    """2BW, whose norm is read a batch later, or not at all."""

    def __init__(self, *given: Any, clips: bool = True) -> None:
        super().__init__(*given)
        self.clips, self.schedule.update = clips, self.update

    def update(self) -> None:
        """Clips and steps."""
        if self.clips:
            self.schedule.clip_grad_norm_(CLIP)
        self.optimizer.step()

    def run(self) -> None:
        """Trains on some batches, to a drain."""
        for _ in range(BATCHES):
            self.step()
        with self.schedule.drained():
            pass


class OfTrials:
    """2BW by our own executor, with plain SGD and a deferred clip."""

    def __init__(self, gang: Gang, schedule: Schedule, seconds: float) -> None:
        stage = Stage(
            module := SleepingStage(seconds),
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


def contenders(gang: Gang, p: int, m: int, seconds: float) -> dict[str, Flushed | Delayed]:
    """All that is compared; the schedules with two stages per rank get halves."""
    rank = gang.place
    looped, folded = [rank, rank + p], [rank, 2 * p - 1 - rank]
    whole, half = (partial(SleepingStage, seconds / parts) for parts in (1, 2))
    delayed = partial(Schedule2BW, trace=True)
    plain, slack = partial(delayed, error_feedback=0.0), partial(delayed, slack=True)
    return {
        "Schedule1F1B": Flushed(Schedule1F1B, [rank], m, whole),
        "ScheduleInterleaved1F1B": Flushed(ScheduleInterleaved1F1B, looped, m, half),
        "ScheduleZBVZeroBubble": Flushed(ScheduleZBVZeroBubble, folded, m, half),
        **(
            {"ScheduleDualPipeV": Flushed(ScheduleDualPipeV, folded, m, half)}
            if m >= 2 * p  # torch refuses fewer
            else {}
        ),
        "Schedule2BW": Delayed(delayed, [rank], m, whole),
        "Schedule2BW without a clip": Delayed(delayed, [rank], m, whole, clips=False),
        "Schedule2BW without Error Feedback": Delayed(plain, [rank], m, whole),
        **({"Schedule2BW with slack": Delayed(slack, [rank], m, whole)} if m > 2 * (p - 1) else {}),
    }
