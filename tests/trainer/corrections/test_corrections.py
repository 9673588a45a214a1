"""Corrections by hand, and how they relate to each other; test_conformance.py has the equations."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from pipegap.trainer.corrections.compensation import LearningRate, Taylor, WeightPrediction
from pipegap.trainer.corrections.ema_nesterov import EmaNesterov
from pipegap.trainer.corrections.error_feedback import (
    AdaptiveErrorFeedback,
    ErrorFeedback,
    GradientErrorFeedback,
    Late,
)
from pipegap.trainer.corrections.none import NoCorrection, Past
from pipegap.trainer.delayed import DelayedOptimizer
from pipegap.trainer.folder import record
from pipegap.trainer.optimizers.routing import kinds
from pipegap.trainer.schedules.recipes import pipedream, pipedream_2bw, sync
from tests.oracles.corrections import REFERENCES, Plain
from tests.support import choices, toy
from tests.support.delayed import ADAMW, KEEP, PHASES, Loop, T, assert_equal
from tests.support.every_correction import (
    NAMES,
    SETTINGS,
    Make,
    Setting,
    error,
    looks_ahead,
    maker,
    reference,
    variants,
)

FEEDBACK = partial(ErrorFeedback, coefficient=1.0, lag=1)


def apply(
    correction: NoCorrection, weight: Tensor, update: float, delay: int, looks_back: bool = False
) -> float:
    """The weight after an optimizer that subtracts `update`, and the correction."""
    if looks_back:  # as on a GPU
        correction.look_back([delay])
    weight -= update
    correction.apply([weight], [torch.full_like(weight, update)], [delay])
    return float(weight)


ADAPTIVE = partial(AdaptiveErrorFeedback, coefficient=1.0, decay=0.0)


@pytest.mark.parametrize("looks_back", [False, True])
@pytest.mark.parametrize(
    ("make", "lag", "steps", "weights"),
    [
        # 10 − 1; 9 − 3 − 0.5 (3 − 1); 5 − 2 − 0.5 (2 − 3)
        (partial(FEEDBACK, coefficient=0.5), 1, [(1, 1), (3, 1), (2, 1)], [9, 5, 3.5]),
        # 10 − 1; 9 − 2 − (2 − 1); then two updates back: 6 − 4 − (4 − 1); −1 − 3 − (3 − 2)
        (partial(FEEDBACK, lag="delay"), 2, [(1, 0), (2, 1), (4, 2), (3, 2)], [9, 6, -1, -5]),
        # Without a delay an update is recorded, and nothing is corrected: then 7 − 3 − (3 − 2).
        (FEEDBACK, 1, [(1, 0), (2, 0), (3, 1)], [9, 7, 3]),
        # SOAP and ADOPT make no update at their first call: nothing is corrected after it.
        (FEEDBACK, 1, [(0, 1), (2, 1), (1, 1)], [10, 8, 8]),
        (partial(FEEDBACK, lag="delay"), 2, [(0, 2), (2, 2), (3, 2)], [10, 8, 5]),
        # No memory: λ = u / v for an update u after v, between 0 and 1: 0.5, −1 → 0, 3 → 1.
        (ADAPTIVE, 1, [(2, 1), (1, 1), (-1, 1), (-3, 1)], [8, 7.5, 8.5, 13.5]),
        # Averages of u v and v²: (2, 1) → λ = 0.5; (−1, 2.5) → 0; (0.5, 3.25) → λ = 0.5 · 2 / 13.
        (
            partial(ADAPTIVE, coefficient=0.5, decay=0.5),
            1,
            [(1, 1), (2, 1), (-2, 1), (-1, 1)],
            [9, 6.5, 8.5, 9.5 - 0.5 * 2 / 13],
        ),
    ],
)
def test_corrected_updates_by_hand(
    make: partial[NoCorrection],
    lag: int,
    steps: list[tuple[float, int]],
    weights: list[float],
    looks_back: bool,
) -> None:
    """The weights from 10 on, after updates with their delays."""
    correction, weight = make(T, [lag]), torch.tensor([10.0])
    ends = [apply(correction, weight, *step, looks_back=looks_back) for step in steps]
    assert ends == pytest.approx(weights)


def test_an_update_of_a_part_of_a_weight_is_one() -> None:
    """A first entry that stays, as of a token that no batch has, is no sign of a zero update."""
    correction, weights = FEEDBACK(T, [1]), [torch.tensor([10.0, 10.0])]
    for update in ([0.0, 1.0], [2.0, 3.0]):
        step = [torch.tensor(update)]
        weights[0] -= step[0]
        correction.apply(weights, step, [1])
    # 10 − 0 − 2 − (2 − 0); 10 − 1 − 3 − (3 − 1)
    assert weights[0].tolist() == [6.0, 4.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_error_feedback_rounds_as_its_equation_does(dtype: torch.dtype) -> None:
    """To the last bit: the difference, then λ times it, then the weight; no product is fused."""
    torch.manual_seed(0)
    steps = [torch.randn(4, 33).mul_(1e-3).to(dtype) for _ in range(6)]
    weight = torch.randn(4, 33).to(dtype)
    correction, expected = ErrorFeedback(T, [1], coefficient=0.7, lag=1), weight.clone()
    for t, step in enumerate(steps):
        weight -= step
        correction.apply([weight], [step.clone()], [1])
        expected = expected - step
        if t:
            expected = expected - 0.7 * (step - steps[t - 1])
        assert torch.equal(weight, expected)


def test_a_restored_correction_leaves_the_state_alone_that_it_was_given() -> None:
    """It overwrites what it remembers; the state may be another one's, or a file's."""
    first, weight = FEEDBACK(T, [1]), torch.tensor([10.0])
    apply(first, weight, 1.0, delay=1)
    second, other = FEEDBACK(T, [1]), weight.clone()
    second.restore(first.state())
    assert apply(second, other, 3.0, delay=1) == 9.0 - 3.0 - (3.0 - 1.0)
    assert apply(first, weight, 2.0, delay=1) == 9.0 - 2.0 - (2.0 - 1.0)


def test_a_restored_average_is_not_the_state_that_it_came_from() -> None:
    """Taylor's D, 0.5 · 4 + 0.5 · 16, is averaged in place."""
    first = Taylor(T, [1], coefficient=1.0, decay=0.5)
    first.gradient([torch.tensor([2.0])], [torch.tensor([1.0])], [0])
    saved, second = first.state(), Taylor(T, [1], coefficient=1.0, decay=0.5)
    second.restore(saved)
    second.gradient([torch.tensor([4.0])], [torch.tensor([1.0])], [0])
    assert second.state()[0]["diagonal"].item() == 10.0
    assert saved[0]["diagonal"].item() == 4.0


# EMA-Nesterov around any optimizer is its authors' two equations, in trials and in own loops.

T_OF_EMA_NESTEROV, ONE_STAGE = 50, {"num_stages": 1, "num_microbatches": 1}
BETA, GAMMA, START, REST = 0.9, 0.8, 4, 6
LOOK = partial(EmaNesterov, look_ahead=BETA, decay=GAMMA, start=START, rest=REST)
SCHEDULES = {
    0: sync(T_OF_EMA_NESTEROV, **ONE_STAGE),
    1: pipedream_2bw(T_OF_EMA_NESTEROV, **ONE_STAGE, **PHASES),
}


def naive(make: Any, delay: int, coefficient: float) -> list[list[Tensor]]:
    """x(0) … x(T): x(t+1) = A(x(t) + β m(t)), m(t+1) = γ m(t) + (1 − γ) (x(t+1) − x(t))."""
    module = toy.modules(1)[0]
    weights = [*module.parameters()]
    optimizer = make([(kinds(module)[name], w) for name, w in module.named_parameters()])
    scheduler = LambdaLR(optimizer, toy.lr_factor)

    def show(values: Sequence[Tensor]) -> None:
        for weight, value in zip(weights, values, strict=True):
            weight.data.copy_(value)

    def taken() -> list[Tensor]:
        return [weight.detach().clone() for weight in weights]

    xs, ys, m, last = [taken()], [taken()], [torch.zeros_like(w) for w in weights], taken()
    for t in range(T_OF_EMA_NESTEROV):
        show(ys[max(0, t - delay)])
        optimizer.zero_grad()
        rows = toy.batch(t)
        toy.loss(module(rows[:, :-1]), rows[:, 1:]).backward()
        show(ys[t])
        optimizer.step()
        u = [y - w for y, w in zip(ys[t], taken(), strict=True)]
        x = taken()
        if t > 0 and delay:
            x = [
                w - coefficient * (now - old) if old.any() else w
                for w, now, old in zip(x, u, last, strict=True)
            ]
        last = u
        m = [GAMMA * a + (1 - GAMMA) * (b - c) for a, b, c in zip(m, x, xs[t], strict=True)]
        beta = BETA * toy.lr_factor(t) if START <= t + 1 < T_OF_EMA_NESTEROV - REST else 0.0
        xs.append(x)
        ys.append([a + beta * b for a, b in zip(x, m, strict=True)])
        scheduler.step()
    return xs


@pytest.mark.parametrize(("delay", "coefficient"), [(0, 0.0), (1, 0.0), (1, 1.0)])
@pytest.mark.parametrize("optimizer", ["adamw", "lion", "mars", "muon", "sgd", "soap"])
def test_it_is_the_authors_equations_around_any_optimizer(
    optimizer: str, delay: int, coefficient: float
) -> None:
    """In fp64 over 50 updates, where training evaluates, and at its end."""
    make = choices.optimizer_maker(optimizer, lr=0.02)
    executor = toy.emulated(SCHEDULES[delay], make, partial(LOOK, coefficient=coefficient))
    expected = naive(make, delay, coefficient)
    for first, last in ((0, 20), (20, T_OF_EMA_NESTEROV)):
        toy.run(executor, (first, last))
        [stage] = executor._stages
        for ours, theirs in zip(stage.evaluated(), expected[last], strict=True):
            torch.testing.assert_close(ours.detach(), theirs, rtol=1e-12, atol=1e-12)
        ahead = [
            torch.equal(a, b) for a, b in zip(stage.evaluated(), stage.versions.master, strict=True)
        ]
        assert all(ahead) == (last == T_OF_EMA_NESTEROV), "only at the end they are what is stepped"


@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("delay", SCHEDULES)
def test_a_loop_of_ones_own_looks_ahead_as_a_trial_does(delay: int, keep: str) -> None:
    """To the bit, without a delay too: what it reads, what it evaluates, and what it resumes."""
    correction = partial(LOOK, coefficient=0.7)
    executor = toy.emulated(SCHEDULES[delay], ADAMW, correction)
    options = {
        "delay": delay,
        "correction": correction,
        "num_updates": T_OF_EMA_NESTEROV,
        "keep": keep,
    }
    loop = Loop(ADAMW, **options)
    losses = [update.loss for update in toy.run(executor, (0, 20))]
    assert loop.run(range(20)) == losses
    if keep == "weights" or not delay:
        shown = [weight.detach() for weight in executor._stages[0].evaluated()]
        assert all(map(torch.equal, loop.weights(), shown))
    resumed = Loop(ADAMW, **options)
    resumed.module.load_state_dict(loop.module.state_dict())
    resumed.delayed.load_state_dict(loop.delayed.state_dict())
    resumed.scheduler.load_state_dict(loop.scheduler.state_dict())
    losses = [update.loss for update in toy.run(executor, (20, T_OF_EMA_NESTEROV))]
    assert resumed.run(range(20, T_OF_EMA_NESTEROV)) == losses
    resumed.delayed.finish()
    assert all(map(torch.equal, resumed.weights(), toy.weights(executor)))


def test_a_rate_without_a_scheduler_counts_as_the_peak() -> None:
    """And what the last update reaches is not looked ahead of."""
    weight = torch.nn.Parameter(torch.tensor([10.0]))
    make = partial(EmaNesterov, look_ahead=2.0, decay=0.5, start=0, rest=0, coefficient=0.0)
    sgd = torch.optim.SGD([weight], lr=0.25)
    delayed = DelayedOptimizer(sgd, 0, correction=make, num_updates=2)
    weight.grad = torch.tensor([4.0])
    delayed.step()
    assert weight.item() == 9 - 2 * 0.5, "x(1) = 10 − 1, m(1) = 0.5 · (9 − 10)"
    with delayed.newest():
        assert weight.item() == 9
    delayed.step()
    assert weight.item() == 8 - 1, "x(2) = y(1) − 1, and no look"


def test_matrices_of_constant_norm_keep_it_where_they_look() -> None:
    """What is read and stepped from lies on the sphere, as what is evaluated does."""
    make = choices.optimizer_maker("muonh", lr=0.05)
    executor = toy.emulated(SCHEDULES[1], make, partial(LOOK, coefficient=1.0))
    toy.run(executor, (0, 20))
    [stage] = executor._stages
    (on_sphere,) = (
        group["params"] for group in stage.optimizer.param_groups if "on_sphere" in group
    )
    start = [*toy.modules(1)[0].parameters()]
    rows = zip(start, stage.evaluated(), stage.versions.master, strict=True)
    matrices = [(a, x, y) for a, x, y in rows if any(y is weight for weight in on_sphere)]
    assert matrices
    for first, x, ahead in matrices:
        assert not torch.equal(x, ahead)
        assert x.norm().item() == pytest.approx(first.norm().item(), rel=1e-12)
        assert ahead.norm().item() == pytest.approx(first.norm().item(), rel=1e-12)


# Every correction of conf/correction/ is its paper's equation, and keeps what it says it keeps.

every = pytest.mark.parametrize("name", NAMES)
every_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
ROUNDING = 1e-11


def test_every_choice_has_a_reference() -> None:
    assert set(NAMES) == set(REFERENCES)


@every
@every_setting
def test_it_equals_its_equations(name: str, setting: Setting) -> None:
    for node in variants(name):
        assert error(maker(node), reference(name, node), setting) < ROUNDING, node


@pytest.mark.parametrize("name", [name for name in NAMES if name != "none"])
def test_its_reference_acts(name: str) -> None:
    """Otherwise any correction would equal it."""
    setting = SETTINGS["delays of 3, 2, 1 and 0"]
    for node in variants(name):
        plain = error(NoCorrection, reference(name, node), setting)
        assert plain > 1e-4, node


@every
def test_without_delay_it_is_the_identity(name: str) -> None:
    """But for what looks ahead."""
    schedule = sync(T, num_stages=2, num_microbatches=3)
    plain = toy.emulated(schedule, ADAMW)
    updates = toy.run(plain, (0, T))
    for node in variants(name):
        corrected = toy.emulated(schedule, ADAMW, maker(node))
        assert (toy.run(corrected, (0, T)) == updates) is not looks_ahead(name)
        if not looks_ahead(name):
            assert_equal(corrected, toy.weights(plain))


def delayed(node: dict[str, Any]) -> toy.Emulated:
    """On `pipedream` with m = 1, whose delays are 3, 2, 1, 0."""
    phases = {"synchronous_start": 1, "synchronous_cooldown": 0}
    schedule = pipedream(T, num_stages=4, num_microbatches=1, **phases)
    return toy.emulated(schedule, ADAMW, maker(node))


@every
def test_it_survives_drains_and_a_restart(name: str, tmp_path: Path) -> None:
    """Bit for bit, also by a checkpoint's file."""
    for node in variants(name):
        straight, drained, other = delayed(node), delayed(node), delayed(node)
        updates = toy.run(straight, (0, 1, T))
        first = toy.run(drained, (0, 1, 3, 5))
        record.save(tmp_path, 5, {"stages": [stage.state() for stage in drained._stages]}, 1)
        path = record.newest_first(tmp_path)[0].path
        for stage, saved in zip(other._stages, record.load(path)["stages"], strict=True):
            stage.restore(saved)
        assert first + toy.run(other, (5, 7, T)) == updates
        assert_equal(other, toy.weights(straight))


@every
def test_it_keeps_as_many_tensors_as_it_declares(name: str) -> None:
    """What a checkpoint costs, and memory: fp32 buffers, and leaves for late reads."""
    for node in variants(name):
        executor = delayed(node)
        toy.run(executor, (0, 1, T))
        for stage, lag in zip(executor._stages, (3, 2, 1, 0), strict=True):
            declares = maker(node)(T, [lag])
            for saved in stage.state().values():
                shape = saved["master"].shape
                shapes = Counter(tensor.shape for tensor in saved["correction"].values())
                assert shapes[shape] == declares.num_buffers(lag), node
                assert len(saved["ahead"]) == declares.num_leaves_ahead(lag), node
                assert set(shapes) <= {shape, torch.Size([2])}, "a few numbers may come on top"


@every
def test_only_what_reads_the_update_asks_for_it(name: str) -> None:
    """It costs a copy of the weights; test_delayed_update.py has that others cost nothing."""
    for node in variants(name):
        made = maker(node)(T, [1])
        methods = (type(made).apply, NoCorrection.apply), (type(made).ahead, NoCorrection.ahead)
        assert not made.needs_update or any(own is not plain for own, plain in methods)


# The references notice every mistake in a correction that was thought of: each one must differ.

Tensors = Sequence[Tensor]
NOTICED = 1e-6


def largest_error(make: Make, oracle: Plain) -> float:
    return max(error(make, oracle, setting) for setting in SETTINGS.values())


class Oldest(Past):
    """Takes the oldest tensor there is for the one of the age that was asked for."""

    def get(self, weight: int, age: int) -> Tensor:
        return super().get(weight, len(self._past))


class Newest(Past):
    """Takes the newest."""

    def get(self, weight: int, age: int) -> Tensor:
        return super().get(weight, 1)


def changed(kind: Any, **attributes: Callable[[Any], Any]) -> Make:
    """The correction with other values of these attributes, made of itself."""

    def make(num_updates: int, lags: Sequence[int], **options: Any) -> NoCorrection:
        made: NoCorrection = kind(num_updates, lags, **options)
        vars(made).update({name: value(made) for name, value in attributes.items()})
        return made

    return make


def other_sign(made: Any) -> float:
    return -made.coefficient


class KeepsWhatItMade(GradientErrorFeedback):
    """Compares with the gradient that was corrected, not with the raw one."""

    def gradient(self, gradients: Tensors, weights: Tensors, delays: Sequence[int]) -> None:
        super().gradient(gradients, weights, delays)
        self._gradients.record([gradient.clone() for gradient in gradients])


class ForgetsToClamp(AdaptiveErrorFeedback):
    def _factors(self, late: Late, *tensors: list[Tensor]) -> Tensor:
        super()._factors(late, *tensors)
        averages = torch.stack([self._averages[i] for i in late])
        return self.coefficient * averages[:, 0] / averages[:, 1]


class LooksAtItsRead(EmaNesterov):
    """Averages the moves of what is read, y, for those of x."""

    def look_ahead(self, weights: Tensors, update: int, rate: float) -> None:
        super().look_ahead(weights, update, rate)
        torch._foreach_copy_(list(self._reached), list(weights))


class NeverRests(EmaNesterov):
    def look_ahead(self, weights: Tensors, update: int, rate: float) -> None:
        self._ahead_at = range(self._ahead_at.start, T)
        super().look_ahead(weights, update, rate)


class IgnoresTheRate(EmaNesterov):
    def look_ahead(self, weights: Tensors, update: int, rate: float) -> None:
        super().look_ahead(weights, update, 1.0)


class LooksOnceMore(EmaNesterov):
    """One update later than it should."""

    def look_ahead(self, weights: Tensors, update: int, rate: float) -> None:
        super().look_ahead(weights, update - 1, rate)


class AbsoluteGradient(Taylor):
    """|g| for g ⊙ g."""

    def _curvature(self, gradients: Tensors) -> list[Tensor]:
        return [gradient.abs() for gradient in gradients]


class AveragesFromZero(Taylor):
    def _curvature(self, gradients: Tensors) -> list[Tensor]:
        self._diagonal = self._diagonal or [torch.zeros_like(g) for g in gradients]
        return super()._curvature(gradients)


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        (
            "error_feedback",
            changed(
                ErrorFeedback,
                _updates=lambda c: Oldest("update", [c.num_buffers(lag) for lag in c.lags]),
            ),
        ),
        ("error_feedback", changed(ErrorFeedback, coefficient=other_sign)),
        ("error_feedback_gradient", changed(GradientErrorFeedback, coefficient=other_sign)),
        ("error_feedback_gradient", KeepsWhatItMade),
        ("adaptive_error_feedback", ForgetsToClamp),
        ("adaptive_error_feedback", changed(AdaptiveErrorFeedback, decay=lambda c: 1 - c.decay)),
        ("ema_nesterov", changed(EmaNesterov, decay=lambda c: 1 - c.decay)),
        ("ema_nesterov", LooksAtItsRead),
        ("ema_nesterov", NeverRests),
        ("ema_nesterov", IgnoresTheRate),
        ("ema_nesterov", LooksOnceMore),
        ("taylor", changed(Taylor, _weights=lambda c: Oldest("weight", c.lags))),
        ("taylor", changed(Taylor, _weights=lambda c: Newest("weight", c.lags))),
        ("taylor", AbsoluteGradient),
        ("taylor", AveragesFromZero),
        (
            "weight_prediction",
            changed(WeightPrediction, _horizons=lambda c: [min(h, 1.0) for h in c._horizons]),
        ),
        (
            "weight_prediction",
            changed(WeightPrediction, _horizons=lambda c: [-h for h in c._horizons]),
        ),
        (
            "learning_rate",
            changed(
                LearningRate,
                lr_factor=lambda c: lambda k, delay: LearningRate.lr_factor(c, k + 1, delay),
            ),
        ),
        (
            "learning_rate",
            changed(
                LearningRate,
                lr_factor=lambda c: lambda k, delay: LearningRate.lr_factor(c, k, delay) ** 0.5,
            ),
        ),
    ],
)
def test_a_wrong_correction_is_noticed(name: str, mutant: Any) -> None:
    """By at least one of the settings that its reference is tried with."""
    errors = []
    for node in variants(name):
        options = {key: value for key, value in node.items() if key != "_target_"}
        oracle = REFERENCES[name](SimpleNamespace(**options), T)
        errors.append(largest_error(partial(mutant, **options), oracle))
    assert max(errors) > NOTICED
