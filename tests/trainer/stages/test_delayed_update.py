"""The emulated trainer equals the equations, exactly."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipegap.trainer.corrections.compensation import LearningRate
from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.optimizers.routing import kinds
from pipegap.trainer.schedules import recipes as schedules
from pipegap.trainer.schedules.operations import Op
from pipegap.trainer.stages.stage import Stage
from tests.support import toy
from tests.support.delayed import ADAMW, PHASES, SGD, T, assert_equal, expected


@pytest.mark.parametrize("optimizer", [ADAMW, SGD], ids=["adamw", "sgd"])
@pytest.mark.parametrize("tau", [0, 1, 3])
@pytest.mark.parametrize("coefficient", [None, 1.0, 0.3])
def test_equals_the_equations(optimizer: Any, tau: int, coefficient: float | None) -> None:
    """In float64; tests/trainer/optimizers/test_optimizers.py does so for every optimizer."""
    history, losses = expected(
        optimizer,
        torch.float64,
        lambda t: max(0, t - tau),
        coefficient=coefficient or 0.0,
        clip_norm=0.5,
    )
    schedule = schedules.constant_delay(T, delay=tau, num_stages=1, num_microbatches=1, **PHASES)
    correction = (
        NoCorrection
        if coefficient is None
        else partial(ErrorFeedback, coefficient=coefficient, lag=1)
    )
    executor = toy.emulated(schedule, optimizer, correction, clip_norm=0.5)
    updates = toy.run(executor, schedule.phases)
    assert [u.loss for u in updates] == losses
    assert any(u.grad_norm > 0.5 for u in updates), "the clip must act for this test to mean much"
    assert_equal(executor, history[-1])


def test_without_delay_it_is_plain_torch_training() -> None:
    """The loop that everybody writes, bit for bit, through `sync` and through τ = 0."""
    model = nn.Sequential(*toy.modules(1)[0])
    decayed = [p for m in model.modules() if isinstance(m, nn.Linear) for p in [m.weight]]
    decayed += list(model[0].parameters())
    others = [p for p in model.parameters() if all(p is not q for q in decayed)]
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.02, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, toy.lr_factor)
    for t in range(T):
        rows = toy.batch(t)
        toy.loss(model(rows[:, :-1]), rows[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    shape = {"num_stages": 1, "num_microbatches": 1}
    for ours in (
        schedules.sync(T, **shape),
        schedules.gpipe(T, **shape),
        schedules.constant_delay(T, delay=0, **shape, **PHASES),
    ):
        executor = toy.emulated(ours, ADAMW, clip_norm=0.5)
        toy.run(executor, (0, T))
        assert_equal(executor, [p.detach() for p in model.parameters()])


@pytest.mark.parametrize("num_stages", [1, 2, 4])
@pytest.mark.parametrize("coefficient", [0.0, 1.0])
def test_stages_and_microbatches_change_no_semantics(num_stages: int, coefficient: float) -> None:
    """AdamW is elementwise: stages change nothing but the order of the norm's sum, so no clip."""
    history, losses = expected(
        ADAMW, torch.float64, lambda t: max(0, t - 1), coefficient=coefficient, microbatches=3
    )
    schedule = schedules.pipedream_2bw(T, num_stages=num_stages, num_microbatches=3, **PHASES)
    executor = toy.emulated(schedule, ADAMW, partial(ErrorFeedback, coefficient=coefficient, lag=1))
    updates = toy.run(executor, schedule.phases)
    assert_equal(executor, history[-1])
    torch.testing.assert_close([u.loss for u in updates], losses, rtol=1e-14, atol=0)


def test_phases_switch_the_delay_on_and_off() -> None:
    def version(t: int) -> int:
        return max(3, t - 1) if 3 <= t < 8 else t

    history, _ = expected(ADAMW, torch.float64, version, coefficient=1.0)
    schedule = schedules.pipedream_2bw(
        T, num_stages=2, num_microbatches=1, synchronous_start=3, synchronous_cooldown=0.2
    )
    executor = toy.emulated(schedule, ADAMW, partial(ErrorFeedback, coefficient=1.0, lag=1))
    toy.run(executor, schedule.phases)
    assert_equal(executor, history[-1])


@pytest.mark.parametrize("marks", [(0, 1, 2, 3, 7, 10), (0, 5, 10)])
def test_drains_change_no_number(marks: tuple[int, ...]) -> None:
    schedule = schedules.pipedream_2bw(T, num_stages=4, num_microbatches=3, **PHASES)
    correction = partial(ErrorFeedback, coefficient=1.0, lag=1)
    straight = toy.emulated(schedule, ADAMW, correction, clip_norm=0.5)
    drained = toy.emulated(schedule, ADAMW, correction, clip_norm=0.5)
    assert toy.run(straight, (0, T)) == toy.run(drained, marks)
    assert_equal(drained, toy.weights(straight))


class Onlooker(NoCorrection):
    """Keeps what `apply` is given, and asks for nothing."""

    def __init__(self, num_updates: int, lags: Sequence[int]) -> None:
        super().__init__(num_updates, lags)
        self.seen: list[list[Tensor]] = []

    def apply(
        self, weights: Sequence[Tensor], update: Sequence[Tensor], delays: Sequence[int]
    ) -> None:
        self.seen.append([*update])


def test_a_correction_that_reads_nothing_costs_nothing() -> None:
    """Neither a copy of the weights for the update nor leaves for late reads."""
    schedule = schedules.pipedream_2bw(T, num_stages=1, num_microbatches=1, **PHASES)
    executor = toy.emulated(schedule, SGD, Onlooker)
    toy.run(executor, schedule.phases)
    [stage] = executor._stages
    assert isinstance(stage._correction, Onlooker)
    assert stage._correction.seen == [[]] * T
    assert [len(weight["slots"]) for weight in stage.state().values()] == [2] * len(stage.lags)
    assert [weight["ahead"] for weight in stage.state().values()] == [[]] * len(stage.lags)


@pytest.mark.parametrize("num_replicas", [2, 3])
def test_replicas_train_the_mean_of_all_their_microbatches(num_replicas: int) -> None:
    history, _ = expected(SGD, torch.float64, lambda t: max(0, t - 1), microbatches=6)
    schedule = schedules.pipedream_2bw(
        T, num_stages=1, num_microbatches=6 // num_replicas, **PHASES
    )
    executor = toy.emulated(schedule, SGD, num_replicas=num_replicas)
    toy.run(executor, schedule.phases)
    for ours, theirs in zip(toy.weights(executor), history[-1], strict=True):
        # Sums of three and of two halves round otherwise than one of six.
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_a_group_is_as_late_as_its_latest_weight() -> None:
    """It has one learning rate, where tied weights have a larger delay than the others."""
    module = nn.Linear(1, 1)
    stage = Stage(
        module,
        kinds(module),
        lambda parameters: torch.optim.SGD([weight for _, weight in parameters], lr=1.0),
        partial(LearningRate, T, anneal=T),
        lambda t: 1.0,
        lag=0,
        tied=frozenset({"weight"}),
        tied_lag=2,
        dtype=torch.float32,
    )
    for t in range(3):
        op = Op("F", 0, batch=t, microbatch=0, version=t, tied_version=max(0, t - 2))
        stage.forward(op, torch.ones(1, 1), Tensor.sum)
        stage.backward_input(op, None)
        stage.backward_weights(op)
        stage.update(t, stage.take_gradients())
    assert stage.lr == 2 ** (2 / T - 1)
