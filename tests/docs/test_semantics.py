"""The loop of docs/semantics.md, as it is printed there, against every other way to make 2BW."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.optim.lr_scheduler import LambdaLR

from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.delayed import DelayedOptimizer
from pipegap.trainer.schedules.recipes import pipedream_2bw
from pipegap.trainer.torch_pipelining import Schedule2BW
from tests.support import toy
from tests.support.markdown import ROOT, blocks

T, M = 7, 4
NO_PHASES = {"synchronous_start": 0, "synchronous_cooldown": 0}
adamw = partial(torch.optim.AdamW, lr=0.02, weight_decay=0.1)
BATCHES = [*map(toy.batch, range(T))]


def loss(model: nn.Module, rows: Tensor) -> Tensor:
    return toy.loss(model(rows[:, :-1]), rows[:, 1:])


def printed(num_microbatches: int, error_feedback: float) -> list[Tensor]:
    """The weights that the printed loop trains."""
    [block] = [block for block in blocks(ROOT / "docs/semantics.md") if "train_2bw" in block.text]
    named: dict[str, Any] = {}
    exec(block.text, named)
    [model], options = toy.modules(), (num_microbatches, error_feedback)
    named["train_2bw"](
        model, following_the_factor(adamw(model.parameters())), BATCHES, loss, *options
    )
    return [weight.detach() for weight in model.parameters()]


def following_the_factor(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Update t has the learning rate of trials of the toy."""
    scheduler = LambdaLR(optimizer, toy.lr_factor)
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    return optimizer


def wrapped(error_feedback: float) -> list[Tensor]:
    [model] = toy.modules()
    delayed = DelayedOptimizer(adamw(model.parameters()), error_feedback=error_feedback)
    scheduler = LambdaLR(delayed, toy.lr_factor)
    for rows in BATCHES:
        delayed.zero_grad()
        for microbatch in rows.chunk(M):
            (loss(model, microbatch) / M).backward()
        delayed.step()
        scheduler.step()
    delayed.finish()
    return [weight.detach() for weight in model.parameters()]


def as_a_trial(num_stages: int, error_feedback: float) -> list[Tensor]:
    schedule = pipedream_2bw(T, num_stages=num_stages, num_microbatches=M, **NO_PHASES)
    trial = toy.emulated(
        schedule,
        lambda parameters: adamw([weight for _, weight in parameters]),
        partial(ErrorFeedback, coefficient=error_feedback, lag=1),
    )
    toy.run(trial, (0, T))
    return toy.weights(trial)


def of_torch(error_feedback: float) -> list[Tensor]:
    [model] = toy.modules()
    optimizer = following_the_factor(adamw(model.parameters()))
    stage = PipelineStage(model, 0, 1, torch.device("cpu"))
    options = {"update": optimizer.step, "error_feedback": error_feedback}
    schedule = Schedule2BW(stage, M, toy.loss, **options)
    for rows in BATCHES:
        schedule.step(rows[:, :-1], target=rows[:, 1:])
    with schedule.drained():
        return [weight.detach() for weight in model.parameters()]


WAYS: dict[str, Callable[[float], list[Tensor]]] = {
    "DelayedOptimizer": wrapped,
    "one stage": partial(as_a_trial, 1),
    "four stages": partial(as_a_trial, 4),
    "Schedule2BW": of_torch,
}


@pytest.mark.parametrize("error_feedback", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("way", WAYS)
def test_it_is_2bw_to_the_last_bit(way: str, error_feedback: float, one_rank: None) -> None:
    theirs, ours = WAYS[way](error_feedback), printed(M, error_feedback)
    assert ours[0].dtype == torch.float64
    assert all(map(torch.equal, theirs, ours))
