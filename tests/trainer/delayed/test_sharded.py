"""Two ranks with DDP or FSDP2 make the updates of one process that has the whole batch."""

import pickle
from typing import Any

import pytest
import torch

from tests.support.delayed import ADAMW
from tests.support.own_loop import Loop
from tests.support.sharded_loop import as_rank
from trainer.ranks.spawn import run_gang
from trainer.ranks.supervisor import Parent

NUM = 6


def test_two_ranks_equal_one_process() -> None:
    """DDP to the bit: halves are averaged as two microbatches are. FSDP2 sums a norm by shards."""
    messages: dict[tuple[str, str, int, str], Any] = {}

    def on_message(message: tuple[str, str, int, str, bytes]) -> None:
        messages[message[:4]] = pickle.loads(message[4])

    run_gang(as_rank, (NUM,), 2, Parent(on_message, timeout=600))
    assert len(messages) == 5
    differences: dict[tuple[str, str, int, str], float] = {}
    wrong: list[dict[tuple[str, str, int, str], float]] = []
    for (name, keep, delay, what), weights in messages.items():
        loop = Loop(ADAMW, keep=keep, delay=delay)
        loop.scheduler.lr_lambdas = [lambda _: 1.0] * 3
        for group in loop.delayed.param_groups:
            group["lr"] = group["initial_lr"]
        loop.run(range(NUM), microbatches=2, clip_norm=0.5)
        loop.delayed.finish()
        tolerance = 0.0 if name == "ddp" else 1e-12
        pairs = zip(weights, loop.weights(), strict=True)
        differences[name, keep, delay, what] = max(float((a - b).abs().max()) for a, b in pairs)
        wrong += [differences] if differences[name, keep, delay, what] > tolerance else []
    assert not wrong, wrong[-1]


@pytest.mark.parametrize("keep", ["weights", "gradients"])
def test_corrections_do_not_mix_weights_that_are_not_alike(keep: str) -> None:
    """Weights of another dtype have a correction of their own."""
    loop, mixed = Loop(ADAMW, keep=keep), Loop(ADAMW, keep=keep)
    extra = torch.nn.Parameter(torch.ones(2, dtype=torch.float32))
    mixed.delayed.add_param_group({"params": [extra], "initial_lr": 0.02})
    mixed.scheduler.base_lrs.append(0.02)
    mixed.scheduler.lr_lambdas.append(lambda _: 1.0)
    assert loop.run(range(4)) == mixed.run(range(4))
