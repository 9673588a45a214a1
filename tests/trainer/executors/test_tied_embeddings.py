"""Tied embeddings over stages: one weight in two places, bit-equal copies, one model's numbers."""

from functools import partial

import pytest
import torch
from torch import Tensor

from tests.support import hybrid, moe, toy
from tests.support.delayed import PHASES
from tests.support.every_optimizer import NAMES
from tests.support.llama import SMALL
from tests.support.steps import executor, resolved
from tests.support.whole import EMBEDDING, emulated
from trainer.base.resources import reproducible
from trainer.executors.emulated import Emulated
from trainer.executors.gradients import Update
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


def trained_alike(*words: str) -> bool:
    """Whether one, two and four stages make the same numbers of a model with its own head."""
    shape = ("model.num_layers=4", "model.tied_embeddings=false", "batch_size=4", "seq_len=16")
    delayed = ("pipeline=pipedream_2bw", "pipeline.num_microbatches=4")
    seen = []
    with reproducible(0, 1):
        for p in (1, 2, 4):
            config = resolved([*shape, *delayed, *words, f"pipeline.num_stages={p}"])
            trained, updates = executor(config), list[Update]()
            trained.run(0, 3, updates.append)
            seen.append((updates, trained.weights()))
    (updates, weights), *others = seen
    return all(
        of_stages == updates and all(torch.equal(its[name], weights[name]) for name in weights)
        for of_stages, its in others
    )


@pytest.mark.parametrize("clip", [1.0, 1e9], ids=["clipped", "not clipped"])
@pytest.mark.parametrize(
    "family", [("model=nano",), moe.WORDS, hybrid.WORDS], ids=["dense", "moe", "hybrid"]
)
def test_with_a_head_of_its_own_stages_change_no_bit(family: tuple[str, ...], clip: float) -> None:
    """The norm counts the weights in one order, whatever the number of stages."""
    assert trained_alike(*family, f"clip_norm={clip}")


@pytest.mark.parametrize("optimizer", [name for name in NAMES if name != "kron"])
def test_nor_do_they_with_any_optimizer(optimizer: str) -> None:
    """Kron draws random numbers for one weight after the other."""
    assert trained_alike("model=nano", f"optimizer={optimizer}")
