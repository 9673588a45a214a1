"""Schedules of torch.distributed.pipelining and `Schedule2BW` on stages that sleep.

Ranks sleep in place of computing, so that two cores are enough; messages, sums over the ranks and
updates are real. Each schedule stands beside a simulation of its order in which messages, sums and
updates take no time.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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

from bench.ranks import CPU, Run, Send, medians_of_all
from bench.timing import cpu_seconds_of, medians
from trainer.ranks.groups import Gang
from trainer.torch_pipelining import Schedule2BW

BATCHES, WIDTH, CLIP = 8, 16, 1e-3
FORWARD = 0.010
"""Seconds of a rank's forward; its backward takes as long for inputs, and again for weights."""


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
    """A stage of one small matrix, [rows, width] → [rows, width]."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.weight = seconds, nn.Parameter(torch.eye(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Sleeps; its backward sleeps for the input and for the weight."""
        weight = _Nap.apply(self.weight, 0.0, self.seconds)
        return _Nap.apply(x, self.seconds, self.seconds) @ weight


class Contender:
    """A schedule on the stages of this rank, with the loop that its users write."""

    def __init__(
        self, gang: Gang, make: Callable[..., Any], indices: Sequence[int], m: int, seconds: float
    ) -> None:
        p = dist.get_world_size() * len(indices)
        self.modules = [SleepingStage(seconds / len(indices)) for _ in indices]
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
            square = torch.stack(
                [w.grad.square().sum() for w in self.weights if w.grad is not None]
            )
            norm = square.sum()
            dist.all_reduce(norm)
            nn.utils.clip_grads_with_norm_(self.weights, CLIP, norm.sqrt())
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
        self.optimizer.zero_grad()

    def run(self) -> None:
        """Trains on some batches, to a drain."""
        for _ in range(BATCHES):
            self.step()
        with self.schedule.drained():
            pass


def contenders(gang: Gang, p: int, m: int, seconds: float) -> dict[str, Flushed | Delayed]:
    """All that is compared; the schedules with two stages per rank get halves."""
    rank = gang.place
    looped, folded = [rank, rank + p], [rank, 2 * p - 1 - rank]
    feedback = partial(Schedule2BW, error_feedback=1.0)
    return {
        "Schedule1F1B": Flushed(gang, Schedule1F1B, [rank], m, seconds),
        "ScheduleInterleaved1F1B": Flushed(gang, ScheduleInterleaved1F1B, looped, m, seconds),
        "ScheduleZBVZeroBubble": Flushed(gang, ScheduleZBVZeroBubble, folded, m, seconds),
        **(
            {"ScheduleDualPipeV": Flushed(gang, ScheduleDualPipeV, folded, m, seconds)}
            if m >= 2 * p  # torch refuses fewer
            else {}
        ),
        "Schedule2BW": Delayed(gang, feedback, [rank], m, seconds),
        "Schedule2BW without a clip": Delayed(gang, feedback, [rank], m, seconds, clips=False),
    }


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
    """Times all contenders in turn; the recording rank sends medians, simulations and overheads."""
    p = dist.get_world_size()
    made = contenders(gang, p, m, FORWARD)
    runs: dict[str, Run] = {name: contender.run for name, contender in made.items()}
    seconds = medians_of_all(gang, runs, rounds)
    ideal = {
        name: BATCHES * makespan(c.schedule.pipeline_order, len(c.stages))
        if len(c.stages) > 1
        else 3 * FORWARD * (BATCHES * m + (p - 1) * (BATCHES if isinstance(c, Flushed) else 1))
        for name, c in made.items()
    }
    awake = contenders(gang, p, m, 0.0)
    busy = {name: awake[name].run for name in ("Schedule1F1B", "Schedule2BW")}
    overhead = medians(busy, rounds, cpu_seconds_of)
    if gang.records:
        send((p, m, seconds, ideal, {k: v / BATCHES / m for k, v in overhead.items()}))


Message = tuple[int, int, dict[str, float], dict[str, float], dict[str, float]]


def show(message: Message) -> None:
    """Prints the lines of one shape."""
    p, m, seconds, ideal, overhead = message
    for name, measured in seconds.items():
        ratio, simulated = (of["Schedule1F1B"] / of[name] for of in (seconds, ideal))
        print(
            f"| {p} | {m} | {name} | {measured * 1e3:.0f} | {ideal[name] / measured:.3f} "
            f"| {ratio:.2f} | {simulated:.2f} |"
        )
    costs = ", ".join(f"{name} {s * 1e3:.2f}" for name, s in overhead.items())
    print(f"CPU ms per microbatch of rank 0, stages that do not sleep: {costs}", flush=True)
