"""The emulated trainer equals the equations, exactly."""

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipegap.trainer.corrections.compensation import LearningRate
from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.optimizers.routing import kinds
from pipegap.trainer.schedules import recipes as schedules
from pipegap.trainer.schedules.operations import Op, Schedule, one_forward_one_backward
from pipegap.trainer.schedules.recipes import pipedream_2bw, sync
from pipegap.trainer.stages.probe import summary
from pipegap.trainer.stages.stage import Stage
from tests.oracles import semantics
from tests.support import models, toy
from tests.support.delayed import ADAMW, PHASES, SGD_OF_DELAYED, T, assert_equal, expected
from tests.support.trials import ran


@pytest.mark.parametrize("optimizer", [ADAMW, SGD_OF_DELAYED], ids=["adamw", "sgd"])
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
    executor = toy.emulated(schedule, SGD_OF_DELAYED, Onlooker)
    toy.run(executor, schedule.phases)
    [stage] = executor._stages
    assert isinstance(stage._correction, Onlooker)
    assert stage._correction.seen == [[]] * T
    assert [len(weight["slots"]) for weight in stage.state().values()] == [2] * len(stage.lags)
    assert [weight["ahead"] for weight in stage.state().values()] == [[]] * len(stage.lags)


@pytest.mark.parametrize("num_replicas", [2, 3])
def test_replicas_train_the_mean_of_all_their_microbatches(num_replicas: int) -> None:
    history, _ = expected(SGD_OF_DELAYED, torch.float64, lambda t: max(0, t - 1), microbatches=6)
    schedule = schedules.pipedream_2bw(
        T, num_stages=1, num_microbatches=6 // num_replicas, **PHASES
    )
    executor = toy.emulated(schedule, SGD_OF_DELAYED, num_replicas=num_replicas)
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


# The oracle notices every mistake that would fake a gap: each mutation must break equality.

CORRECTION = partial(ErrorFeedback, coefficient=1.0, lag=1)


def differs(executor: toy.Emulated) -> bool:
    history, _ = expected(
        ADAMW, torch.float64, lambda t: max(0, t - 1), coefficient=1.0, microbatches=3
    )
    toy.run(executor, (0, T))
    pairs = zip(toy.weights(executor), history[-1], strict=True)
    return any(not torch.equal(ours, theirs) for ours, theirs in pairs)


def make(**options: object) -> toy.Emulated:
    schedule = pipedream_2bw(T, num_stages=2, num_microbatches=3, **PHASES)
    return toy.emulated(schedule, ADAMW, **{"correction": CORRECTION, **options})


def test_unmutated_is_equal() -> None:
    assert not differs(make())


def test_another_batch() -> None:
    assert differs(make(batch=lambda t: toy.batch(t + 1)))


@pytest.mark.parametrize("lag", [0, 2])
def test_another_version(lag: int) -> None:
    executor = toy.emulated(
        Schedule(T, 3, (lag, lag), one_forward_one_backward, True, 0, T), ADAMW, CORRECTION
    )
    assert differs(executor)


def test_another_learning_rate() -> None:
    executor = make()
    for stage in executor._stages:
        stage._lr_factor = lambda t: toy.lr_factor(t + 1)
    assert differs(executor)


class StartsFromZero(ErrorFeedback):
    """Corrects the first delayed update as if a zero update had come before it."""

    def apply(
        self, weights: Sequence[Tensor], update: Sequence[Tensor], delays: Sequence[int]
    ) -> None:
        if not self._updates.has(0, 1):
            for weight, u in zip(weights, update, strict=True):
                weight.sub_(self.coefficient * u)
        super().apply(weights, update, delays)


class ActsOnFreshGradients(ErrorFeedback):
    """Ignores that batch 0 is not delayed, and forgets nothing."""

    def apply(
        self, weights: Sequence[Tensor], update: Sequence[Tensor], delays: Sequence[int]
    ) -> None:
        super().apply(weights, update, [delay + 1 for delay in delays])


class ForgetsToRecord(ErrorFeedback):
    """Records updates only while the delay is on."""

    def apply(
        self, weights: Sequence[Tensor], update: Sequence[Tensor], delays: Sequence[int]
    ) -> None:
        before = self.state()
        super().apply(weights, update, delays)
        if not any(delays):
            self.restore(before)


@pytest.mark.parametrize("mutant", [StartsFromZero, ForgetsToRecord])
def test_another_first_correction(mutant: type[ErrorFeedback]) -> None:
    assert differs(make(correction=partial(mutant, coefficient=1.0, lag=1)))


def test_a_correction_of_fresh_gradients() -> None:
    """In a synchronous phase after the first update, a correction must do nothing."""
    schedule = sync(T, num_stages=2, num_microbatches=3)
    plain, mutant = (
        toy.emulated(schedule, ADAMW, partial(kind, coefficient=1.0, lag=1))
        for kind in (ErrorFeedback, ActsOnFreshGradients)
    )
    for executor in (plain, mutant):
        toy.run(executor, (0, T))
    assert not torch.equal(toy.weights(plain)[0], toy.weights(mutant)[0])
    history, _ = expected(ADAMW, torch.float64, lambda t: t, microbatches=3)
    assert torch.equal(toy.weights(plain)[0], history[-1][0])


def test_a_sum_in_place_of_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Stage.take_gradients

    def take_sum(stage: Stage) -> list[Tensor]:
        return [3 * gradient for gradient in take(stage)]  # of 3 microbatches

    monkeypatch.setattr(Stage, "take_gradients", take_sum)
    assert differs(make())


# The comparison of delayed and fresh updates: right, without a trace, alike in both executors.

DELAYED = ("pipeline=pipedream_2bw", "correction=error_feedback")
TWO = ("pipeline.num_stages=2", "pipeline.num_microbatches=2")


def test_a_comparison_changes_no_number(tmp_path: Path) -> None:
    """Kron draws numbers. A dry update of every optimizer: optimizers/test_optimizers.py."""
    words = (*DELAYED, *TWO, "optimizer=kron", "clip_norm=0.5")
    plain = ran(tmp_path, "a", *words)[1]
    compared = ran(tmp_path, "b", *words, "diagnostics=3")[1]
    assert [row["update"] for row in compared if row.pop("diagnostics", None)] == [0, 3, 6, 9]
    assert plain == compared


def test_both_executors_find_the_same(tmp_path: Path) -> None:
    words = (*models.WORDS, *DELAYED, *TWO, "diagnostics=3")  # of experts there is more to find
    assert ran(tmp_path, "a", *words)[1] == ran(tmp_path, "b", *words, "runner=pipelined")[1]


def test_without_delay_there_is_no_difference(tmp_path: Path) -> None:
    for row in ran(tmp_path, "a", "diagnostics=1")[1]:
        for group in row["diagnostics"].values():
            assert group["update_cosine"] == group["applied_cosine"] == pytest.approx(1, abs=1e-7)
            assert group["update_error"] == group["applied_error"] == group["gradient_change"] == 0


def test_it_is_in_metrics_by_group(tmp_path: Path) -> None:
    written = ran(tmp_path, "a", *DELAYED, "diagnostics=4", "num_updates=5")[1]
    groups = written[4]["diagnostics"]
    assert set(groups) == {"all", "matrix", "embedding", "vector"}
    for name in ("weight_norm", "update_norm", "gradient_norm"):
        parts = [groups[kind][name] for kind in ("matrix", "embedding", "vector")]
        assert groups["all"][name] == pytest.approx(math.hypot(*parts))
    assert groups["all"]["gradient_norm"] == pytest.approx(written[4]["grad_norm"])
    assert 0 < groups["matrix"]["update_cosine"] < 1
    json.dumps(written, allow_nan=False)


def test_it_equals_the_equations() -> None:
    """Update 6 with error feedback: u of the delayed and of the fresh gradient, from one state."""

    def version(t: int) -> int:
        return max(0, t - 1)

    def fresh_once(t: int) -> int:
        return t if t == 6 else version(t)

    history, _ = expected(ADAMW, torch.float64, version, coefficient=0.7)
    fresh, _ = expected(ADAMW, torch.float64, fresh_once, coefficient=0.7)
    # With a fresh gradient there is no correction, so W(6) − W(7) is the fresh u itself.
    u_fresh = flat(fresh[6]) - flat(fresh[7])
    applied = flat(history[6]) - flat(history[7])

    schedule = pipedream_2bw(T, num_stages=2, num_microbatches=1, **PHASES)
    executor = toy.emulated(schedule, ADAMW, partial(ErrorFeedback, coefficient=0.7, lag=1))
    toy.run(executor, (0, 6))
    executor.probe(6)
    toy.run(executor, (6, 7))
    comparison = {
        f"{i}.{name}": products
        for i, stage in enumerate(executor._stages)
        for name, products in stage.take_comparison().items()
    }
    all_of_it = summary(comparison)["all"]
    cosine = applied.dot(u_fresh) / (applied.norm() * u_fresh.norm())
    assert all_of_it["applied_cosine"] == pytest.approx(float(cosine), rel=1e-10)
    error = (applied - u_fresh).norm() / u_fresh.norm()
    assert all_of_it["applied_error"] == pytest.approx(float(error), rel=1e-10)
    assert all_of_it["weight_norm"] == pytest.approx(float(flat(history[6]).norm()))


def flat(weights: semantics.Weights) -> torch.Tensor:
    return torch.cat([weight.flatten() for weight in weights])


def test_the_change_of_a_gradient_is_told(tmp_path: Path) -> None:
    """So that the Taylor coefficient can be swept until it acts."""
    changes = []
    for coefficient in (1.0, 10.0):
        words = ("pipeline=pipedream_2bw", "correction=taylor", "diagnostics=4")
        _, written = ran(
            tmp_path, str(coefficient), *words, f"correction.coefficient={coefficient}"
        )
        changes.append(written[4]["diagnostics"]["all"]["gradient_change"])
    assert changes[1] == pytest.approx(10 * changes[0], rel=0.2)


@pytest.mark.parametrize("runner", ["emulated", "pipelined"])
def test_a_divergence_is_noticed_at_its_own_update(tmp_path: Path, runner: str) -> None:
    """A fresh gradient that is not finite is no result: the delayed one may still be."""
    words = (*TWO, "pipeline=pipedream_2bw", "optimizer=sgd", "optimizer.lr=1e12", "clip_norm=null")
    plain, _ = ran(tmp_path, "a", *words)
    compared, _ = ran(tmp_path, "b", *words, "diagnostics=1", f"runner={runner}")
    assert plain["status"] == compared["status"] == "diverged"
    assert plain["diverged_at"] == compared["diverged_at"]
