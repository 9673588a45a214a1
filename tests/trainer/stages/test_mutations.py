"""The oracle notices every mistake that would fake a gap: each mutation must break equality."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.schedules.orders import one_forward_one_backward
from pipegap.trainer.schedules.recipes import pipedream_2bw, sync
from pipegap.trainer.stages.stage import Stage
from tests.support import toy
from tests.support.delayed import ADAMW, PHASES, T, expected

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
