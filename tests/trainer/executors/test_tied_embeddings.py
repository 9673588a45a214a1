"""Tied embeddings over stages: one weight in two places, bit-equal copies, one model's numbers."""

from functools import partial

import pytest
import torch
from torch import Tensor

from tests.support import toy
from tests.support.delayed import PHASES
from tests.support.llama import SMALL
from tests.support.whole import EMBEDDING, emulated
from trainer.executors.emulated import Emulated
from trainer.schedules.operations import Schedule
from trainer.schedules.recipes import pipedream, pipedream_2bw, sync

T = 6


def batch(t: int) -> Tensor:
    return torch.randint(0, 61, (4, 9), generator=torch.Generator().manual_seed(t))


def train(schedule: Schedule) -> tuple[Emulated, list[float]]:
    executor = emulated(SMALL, schedule, batch)
    updates = toy.run(executor, schedule.phases)
    assert all(update.grad_norm > 0.5 for update in updates)
    return executor, [update.loss for update in updates]


@pytest.mark.parametrize("num_stages", [2, 4])
@pytest.mark.parametrize(
    "make", [sync, partial(pipedream_2bw, **PHASES)], ids=["sync", "pipedream_2bw"]
)
def test_stages_train_the_same_model(make: partial[Schedule], num_stages: int) -> None:
    whole, losses = train(make(T, num_stages=1, num_microbatches=4))
    many, split_losses = train(make(T, num_stages=num_stages, num_microbatches=4))
    torch.testing.assert_close(split_losses, losses, rtol=1e-10, atol=0)
    expected = whole.weights()
    for name, weight in many.weights().items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("make", [pipedream_2bw, pipedream])
def test_copies_stay_equal_whatever_the_delay_of_their_stages(make: partial[Schedule]) -> None:
    executor, _ = train(make(T, num_stages=4, num_microbatches=4, **PHASES))
    first, last = executor._stages[0], executor._stages[-1]
    copies = [
        stage.versions.master[stage.versions.names.index(EMBEDDING)] for stage in (first, last)
    ]
    assert torch.equal(*copies)


def test_with_delays_by_stage_the_pair_takes_the_larger() -> None:
    schedule = pipedream(T, num_stages=4, num_microbatches=1, **PHASES)
    executor, _ = train(schedule)
    assert schedule.lags == (3, 2, 1, 0)
    held = executor._stages[-1].versions.state()
    assert sorted(held[EMBEDDING]["held"]) == [T - 3, T - 2, T - 1, T]
    assert held["model.norm.weight"]["held"] == [T]
