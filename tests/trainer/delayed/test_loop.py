"""What else a loop of one's own does: evaluate, scale losses, schedule, leave weights unused."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from tests.support import toy
from tests.support.delayed import ADAMW, T
from tests.support.own_loop import KEEP, Loop


def test_the_model_reads_old_weights_and_shows_the_newest() -> None:
    loop = Loop(ADAMW, error_feedback=0)
    start = [w.detach().clone() for w in loop.module.parameters()]
    loop.run(range(1))
    assert all(map(torch.equal, loop.module.parameters(), start)), "batch 1 reads W(0)"
    newest = loop.weights()
    assert not any(map(torch.equal, newest, start))
    loop.delayed.eval()
    with pytest.raises(RuntimeError, match=r"call train\(\) before step\(\)"):
        loop.delayed.step()
    loop.delayed.train()
    loop.run(range(1, 2))
    assert all(map(torch.equal, loop.module.parameters(), newest)), "batch 2 reads W(1)"


@pytest.mark.parametrize("keep", KEEP)
def test_a_scaler_skips_what_overflowed_and_no_version_is_made(keep: str) -> None:
    """As if the overflowed batch had never been there."""
    clean = Loop(ADAMW, keep=keep, num_updates=T)
    clean.scheduler = LambdaLR(clean.delayed, lambda _: 1.0)
    clean.run([0, 1, 3])
    loop = Loop(ADAMW, keep=keep, num_updates=T)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for t in range(4):
        loop.delayed.zero_grad()
        rows_of_batch = toy.batch(t)
        value = toy.loss(loop.module(rows_of_batch[:, :-1]), rows_of_batch[:, 1:])
        scaler.scale(value * (float("inf") if t == 2 else 1.0)).backward()
        scaler.unscale_(loop.delayed)
        for group in loop.delayed.param_groups:
            group["lr"] = clean.delayed.param_groups[0]["lr"]
        scaler.step(loop.delayed)
        scaler.update()
    assert all(map(torch.equal, loop.weights(), clean.weights()))


def test_a_scheduler_of_the_wrapped_optimizer_counts_too() -> None:
    loop, other = Loop(ADAMW), Loop(ADAMW)
    other.scheduler = LambdaLR(other.delayed.optimizer, toy.lr_factor)
    assert loop.run(range(4)) == other.run(range(4))


def test_weights_that_somebody_else_changed_are_not_lost_in_silence() -> None:
    loop = Loop(ADAMW)
    loop.run(range(2))
    with torch.no_grad():
        next(loop.module.parameters()).clamp_(-0.1, 0.1)
    with pytest.raises(RuntimeError, match="changed since the last step"):
        loop.delayed.step()


def test_an_unused_weight_is_left_alone() -> None:
    loop = Loop(ADAMW)
    loop.module.register_parameter("unused", unused := nn.Parameter(torch.ones(3)))
    loop.delayed.add_param_group({"params": [unused]})
    loop.scheduler.base_lrs.append(0.02)
    loop.scheduler.lr_lambdas.append(toy.lr_factor)
    loop.run(range(3))
    assert torch.equal(unused, torch.ones(3))
    with pytest.raises(RuntimeError, match="before the first step"):
        loop.delayed.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
