"""Tied embeddings over stages: one weight in two places, bit-equal copies, one model's numbers."""

import copy
from functools import cache, partial
from itertools import cycle, product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pipegap.trainer.base.places import CONF
from pipegap.trainer.base.resources import reproducible
from pipegap.trainer.executors.emulated import Emulated
from pipegap.trainer.executors.gradients import Update
from pipegap.trainer.models.loss import cross_entropy
from pipegap.trainer.optimizers.routing import kinds
from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.schedules.recipes import pipedream, pipedream_2bw, sync
from tests.oracles import corrections, semantics
from tests.support import every_correction, every_optimizer, hybrid, moe, toy
from tests.support.delayed import ADAMW, PHASES
from tests.support.every_optimizer import NAMES
from tests.support.llama import SMALL
from tests.support.steps import executor, resolved
from tests.support.whole import EMBEDDING, emulated, modules, whole

T = 6


def batch(t: int) -> Tensor:
    return torch.randint(0, 61, (4, 9), generator=torch.Generator().manual_seed(t))


def train(schedule: Schedule) -> tuple[Emulated, list[float]]:
    executor = emulated(SMALL, schedule, batch)
    updates = toy.run(executor, schedule.phases)
    assert all(update.grad_norm > 0.5 for update in updates)
    return executor, [update.loss for update in updates]


@pytest.mark.parametrize(
    ("make", "num_stages"),
    [(sync, 2), (partial(pipedream_2bw, **PHASES), 4)],
    ids=["sync", "pipedream_2bw"],
)
def test_stages_train_the_same_model(make: partial[Schedule], num_stages: int) -> None:
    alone, losses = train(make(T, num_stages=1, num_microbatches=4))
    many, split_losses = train(make(T, num_stages=num_stages, num_microbatches=4))
    torch.testing.assert_close(split_losses, losses, rtol=1e-10, atol=0)
    expected = alone.weights()
    for name, weight in many.weights().items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-7, atol=1e-9)


def copies(executor: Emulated) -> list[Tensor]:
    """The tied weight, as the first and as the last stage have it."""
    ends = executor.stages[0], executor.stages[-1]
    return [stage.versions.master[stage.versions.names.index(EMBEDDING)] for stage in ends]


@cache
def by_stage(*words: str) -> dict[str, Any]:
    """The config of two stages that clip by themselves."""
    shape = ("model=nano", "model.hidden_size=32", "model.num_layers=4", "batch_size=4")
    clip = ("seq_len=8", "clip_norm=0.1", "clip_scope=stage", "pipeline.num_stages=2")
    return resolved([*shape, *clip, *words])


def trained(config: dict[str, Any]) -> Emulated:
    with reproducible(0, 1):
        made, updates = executor(config), list[Update]()
        made.run(0, 3, updates.append)
    assert all(update.grad_norm > 0.1 for update in updates), "the clip acts"
    return made


PIPELINES = sorted(path.stem for path in (CONF / "pipeline").glob("*.yaml"))
CORRECTED = list(zip(NAMES, cycle(every_correction.NAMES), strict=False))
OTHERS = [pair for pair in product(NAMES, every_correction.NAMES) if pair not in CORRECTED]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_copies_stay_equal_in_every_schedule(pipeline: str) -> None:
    """Whatever the delay of their stages."""
    feedback = "none" if pipeline == "paci" else "error_feedback"
    words = f"pipeline={pipeline}", f"correction={feedback}", "pipeline.num_microbatches=4"
    assert torch.equal(*copies(trained(by_stage(*words))))


@pytest.mark.parametrize(
    ("optimizer", "correction"),
    [*CORRECTED, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHERS)],
)
def test_copies_stay_equal_by_any_update(optimizer: str, correction: str) -> None:
    """Each optimizer with a correction, in stages of different delays; the slow ones with all."""
    config = {
        **by_stage("pipeline=pipedream", "pipeline.num_microbatches=1"),
        "optimizer": every_optimizer.node(optimizer),
        "correction": every_correction.settings(correction),
    }
    assert torch.equal(*copies(trained(config)))


@pytest.mark.parametrize("family", [moe.WORDS, hybrid.WORDS], ids=["moe", "hybrid"])
def test_copies_stay_equal_in_every_family(family: tuple[str, ...]) -> None:
    words = "pipeline=pipedream_2bw", "correction=adaptive_error_feedback"
    assert torch.equal(*copies(trained(by_stage(*family, *words))))


@pytest.mark.parametrize("num_stages", [2, 4])
def test_what_clips_by_stage_resumes_to_the_bit(num_stages: int) -> None:
    """A checkpoint has one of the copies, and an export too: it is the model that was evaluated."""
    schedule = pipedream_2bw(T, num_stages=num_stages, num_microbatches=4, **PHASES)
    straight, first, again = (
        emulated(SMALL, schedule, batch, clips_by_stage=True) for _ in range(3)
    )
    updates = toy.run(straight, (0, T))
    assert toy.run(first, (0, 3)) == updates[:3]
    again.restore(copy.deepcopy(first.state()))
    assert toy.run(again, (3, T)) == updates[3:]
    assert all(map(torch.equal, toy.weights(again), toy.weights(straight)))
    model = whole(SMALL).double()
    model.load_state_dict(straight.weights())
    rows = batch(99)
    alone = cross_entropy(model(rows[:, :-1]), rows[:, 1:]).item()
    assert straight.evaluate([rows]) == pytest.approx(alone, rel=1e-12)


def test_with_delays_by_stage_the_pair_takes_the_larger() -> None:
    schedule = pipedream(T, num_stages=4, num_microbatches=1, **PHASES)
    executor, _ = train(schedule)
    assert schedule.lags == (3, 2, 1, 0)
    held = executor._stages[-1].versions.state()
    assert sorted(held[EMBEDDING]["held"]) == [T - 3, T - 2, T - 1, T]
    assert held["model.norm.weight"]["held"] == [T]


@pytest.mark.parametrize(("make", "num_stages"), [(pipedream_2bw, 2), (pipedream, 4)])
def test_a_clip_by_stage_equals_the_equations(make: partial[Schedule], num_stages: int) -> None:
    """Bit for bit: every version's losses, and the weights, of both copies."""
    schedule = make(T, num_stages=num_stages, num_microbatches=4, **PHASES)
    executor = emulated(SMALL, schedule, batch, clips_by_stage=True)
    updates = toy.run(executor, schedule.phases)
    stages = modules(SMALL, num_stages)
    names = [name for stage in stages for name, _ in stage.named_parameters()]
    expected, losses = semantics.train(
        stages,
        schedule.lags,
        lambda stage: ADAMW([(kinds(stage)[name], w) for name, w in stage.named_parameters()]),
        lambda t: ADAMW.keywords["lr"] * toy.lr_factor(t),
        [(rows[:, :-1], rows[:, 1:]) for rows in map(batch, range(T))],
        cross_entropy,
        schedule.version,
        corrections.ErrorFeedback(SimpleNamespace(coefficient=1.0, lag=1), T),
        clip_norm=0.5,
        clips_by_stage=True,
        microbatches=4,
        tied=[tuple(i for i, name in enumerate(names) if name == EMBEDDING)],
    )
    assert [update.loss for update in updates] == losses
    assert all(map(torch.equal, toy.weights(executor), expected[-1]))


def trained_alike(*words: str) -> bool:
    """Whether one stage and four make the same numbers of a model with its own head. The norm
    counts the weights in one order, whatever the number of stages."""
    shape = ("model.num_layers=4", "model.tied_embeddings=false", "batch_size=4", "seq_len=16")
    delayed = ("pipeline=pipedream_2bw", "pipeline.num_microbatches=4")
    seen = []
    with reproducible(0, 1):
        for p in (1, 4):
            config = resolved([*shape, *delayed, *words, f"pipeline.num_stages={p}"])
            stages, updates = executor(config), list[Update]()
            stages.run(0, 3, updates.append)
            seen.append((updates, stages.weights()))
    (updates, weights), (of_stages, its) = seen
    return of_stages == updates and all(torch.equal(its[name], weights[name]) for name in weights)


@pytest.mark.parametrize(
    "words",
    [
        *(moe.WORDS, hybrid.WORDS),
        # Kron draws random numbers for one weight after the other.
        *((f"optimizer={name}", "model=nano") for name in NAMES if name != "kron"),
    ],
    ids=lambda words: words[0],
)
def test_with_a_head_of_its_own_stages_change_no_bit(words: tuple[str, ...]) -> None:
    assert trained_alike(*words)
