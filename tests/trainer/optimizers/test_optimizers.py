"""What every optimizer of conf/optimizer/ must do, whatever its rule."""

import io
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from schedulefree import AdamWScheduleFree
from torch import Tensor, nn
from torch.optim import Optimizer

from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.optimizers import state
from pipegap.trainer.optimizers.averaging import evaluated
from pipegap.trainer.optimizers.routing import Kind, Parameters, is_entrywise, kinds
from pipegap.trainer.optimizers.state import OptimizerInParts, optimizer_in_parts
from pipegap.trainer.schedules import recipes as schedules
from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.schedules.recipes import constant_delay, pipedream, pipedream_2bw, sync
from pipegap.trainer.stages.update import dry_update
from tests.support import delayed, gangs, small_sweep, toy
from tests.support.choices import OPTIMIZERS, optimizer_maker
from tests.support.delayed import PHASES
from tests.support.models import SMALL, whole

every = pytest.mark.parametrize("name", OPTIMIZERS)
ON_SPHERES = ("adamh", "muonh", "normuonh")
"""Optimizers that do not decay hidden matrices: their norm is set anew, up to rounding."""
ONE_STAGE = {"num_stages": 1, "num_microbatches": 1, **delayed.PHASES}


def one_of_each() -> list[tuple[Kind, nn.Parameter]]:
    torch.manual_seed(0)
    kinds_of: list[Kind] = ["matrix", "matrix", "matrix", "embedding", "vector"]
    weights = [nn.Parameter(torch.randn(shape)) for shape in [(6, 4), (4, 6), (6, 4), (5, 4), (4,)]]
    return [*zip(kinds_of, weights, strict=True)]


def step(optimizer: Optimizer, batch: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(batch)
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = scale * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    optimizer.step()


def test_kinds_follow_the_module_not_the_shape() -> None:
    kind_of = kinds(whole(SMALL))
    assert {name for name, kind in kind_of.items() if kind == "embedding"} == {
        "model.embed_tokens.weight"
    }
    assert {name for name, kind in kind_of.items() if kind == "vector"} == {
        name for name in kind_of if name.endswith("norm.weight")
    }
    assert sum(kind == "matrix" for kind in kind_of.values()) == 7 * 4


@every
@pytest.mark.parametrize("present", ["matrix", "embedding", "vector"])
def test_a_stage_may_lack_any_kind(name: str, present: Kind) -> None:
    for weights in (
        [(kind, p) for kind, p in one_of_each() if kind == present],
        [(kind, p) for kind, p in one_of_each() if kind != present],
    ):
        start = [p.detach().clone() for _, p in weights]
        optimizer = optimizer_maker(name)(weights)
        step(optimizer, 0)
        step(optimizer, 1)
        for (_, p), before in zip(weights, start, strict=True):
            assert not torch.equal(p, before)


@every
def test_no_draw_depends_on_what_ran_before(name: str) -> None:
    """The trial's seed alone decides; and nobody else's draws depend on the optimizer."""

    def trained(disturb: bool) -> list[torch.Tensor]:
        weights = one_of_each()
        optimizer = optimizer_maker(name)(weights)
        for t in range(3):
            if disturb:
                torch.rand(t + 1), np.random.random(t + 1)
            before = torch.get_rng_state(), np.random.get_state()[1]
            step(optimizer, t)
            assert torch.equal(torch.get_rng_state(), before[0])
            assert np.array_equal(np.random.get_state()[1], before[1])
        return [p.detach() for _, p in weights]

    assert all(map(torch.equal, trained(disturb=False), trained(disturb=True)))


@pytest.mark.parametrize("name", ON_SPHERES)
def test_a_matrix_of_zeros_stays_and_is_no_nan(name: str) -> None:
    weight = nn.Parameter(torch.zeros(6, 4))
    step(optimizer_maker(name)([("matrix", weight)]), 0)
    assert torch.equal(weight, torch.zeros(6, 4))


def test_rows_of_zeros_grow_under_muown() -> None:
    """Their first update gives them a direction, and Adam then a length."""
    weight, lr = nn.Parameter(torch.zeros(6, 4)), 0.01
    optimizer = optimizer_maker("muown", lr=lr)([("matrix", weight)])
    for t in range(4):
        step(optimizer, 0)
        lengths = weight.detach().norm(dim=1)
        assert lengths.isfinite().all()
        assert lengths.gt(0).all()
        assert lengths.le(1.01 * lr * t + 1e-9).all()


@every
@pytest.mark.parametrize(("tau", "coefficient"), [(1, 1.0), (3, 0.0)])
def test_the_delayed_update_is_its_equation(name: str, tau: int, coefficient: float) -> None:
    """To the last bit: whatever the optimizer does, the stage applies it where the oracle does."""
    lr = optimizer_maker(name).keywords["lr"]
    optimizer = optimizer_maker(name, precondition_every=3, auxiliary_lr=lr)
    history, losses = delayed.expected(
        optimizer, torch.float32, lambda t: max(0, t - tau), coefficient=coefficient, clip_norm=0.5
    )
    schedule = schedules.constant_delay(delayed.T, delay=tau, **ONE_STAGE)
    correction = (
        partial(ErrorFeedback, coefficient=coefficient, lag=1) if coefficient else NoCorrection
    )
    executor = toy.emulated(schedule, optimizer, correction, clip_norm=0.5, dtype=torch.float32)
    assert [update.loss for update in toy.run(executor, schedule.phases)] == losses
    delayed.assert_equal(executor, history[-1])


SPECIAL = ("dion", "kron", "mars", "muonh", "schedule_free_adamw", "soap")
"""Optimizers that draw, average, keep norms, or renew bases."""


@pytest.mark.parametrize(
    "names",
    [SPECIAL, pytest.param({*OPTIMIZERS} - {*SPECIAL}, marks=pytest.mark.slow)],
    ids=["special", "the others"],
)
def test_the_true_pipeline_gives_the_emulations_numbers(
    tmp_path: Path, names: Collection[str]
) -> None:
    words = ("pipeline=pipedream_2bw", "pipeline.num_stages=2", "pipeline.num_microbatches=2")
    configs = [
        small_sweep.config(
            tmp_path, *words, f"optimizer={name}", "num_updates=4", "model.num_layers=4"
        )
        for name in sorted(names)
    ]
    assert [len(numbers.updates) for numbers in gangs.all_equal(configs)] == [4] * len(names)


# Every optimizer does to each matrix of a stack what it does to that matrix by itself, and to a
# vector with two dimensions what it does to its entries in one.

Named = list[tuple[Kind, nn.Parameter]]
SHAPES: dict[Kind, tuple[int, ...]] = {"experts": (4, 6, 16), "vector": (5, 3), "matrix": (6, 16)}
"""A vector may have two dimensions, as a convolution's weight has. A matrix takes a multiple of 64
bytes, so that those of a stack lie as those by themselves do. BLAS rounds a product of matrices
that lie otherwise in another order."""
UPDATES = 5


def drawn(t: int) -> dict[Kind, Tensor]:
    """Weights or gradients: one stack, one vector, one matrix of the stack's shape."""
    generator = torch.Generator().manual_seed(t)
    return {kind: torch.randn(shape, generator=generator) for kind, shape in SHAPES.items()}


def apart(tensors: Mapping[Kind, Tensor]) -> list[tuple[Kind, Tensor]]:
    """The stack's matrices and the vector in one dimension as weights of their own."""
    return [(kind, part.clone()) for kind in tensors for part in parts_of(kind, tensors[kind])]


def stacked(name: str) -> tuple[Named, Optimizer]:
    factory = optimizer_maker(name, precondition_every=3)
    weights: Named = [(kind, nn.Parameter(w)) for kind, w in drawn(99).items()]
    weights.append(("balance", nn.Parameter(torch.zeros(4))))
    optimizer = optimizer_in_parts(factory, weights, is_entrywise=is_entrywise(factory.func))
    return weights, optimizer


def step_of_in_parts(weights: Named, optimizer: Optimizer, t: int) -> None:
    gradients = drawn(t)
    for kind, weight in weights:
        weight.grad = gradients[kind] if kind in gradients else torch.arange(4.0) - 1
    step_at(optimizer)


def step_at(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.9
    optimizer.step()


def by_itself(name: str) -> list[Tensor]:
    """The weights after the updates if every matrix of the stack is a weight of its own."""
    parts = apart(drawn(99))
    weights: Named = [("matrix" if k == "experts" else k, nn.Parameter(w)) for k, w in parts]
    optimizer = optimizer_maker(name, precondition_every=3)(weights)
    for t in range(UPDATES):
        for (_, weight), (_, gradient) in zip(weights, apart(drawn(t)), strict=True):
            weight.grad = gradient
        step_at(optimizer)
    return [w.detach() for w in evaluated(optimizer, [w for _, w in weights])]


def values(weights: Named, optimizer: Optimizer) -> list[Tensor]:
    shown = evaluated(optimizer, [w for _, w in weights])
    return [part for (kind, _), w in zip(weights, shown, strict=True) for part in parts_of(kind, w)]


def parts_of(kind: Kind, weight: Tensor) -> list[Tensor]:
    if kind == "experts":
        return list(weight.detach().unbind())
    return [weight.detach().flatten() if kind == "vector" else weight.detach()]


@every
def test_a_stack_is_stepped_matrix_by_matrix(name: str) -> None:
    """Balance biases step by the sign, and change nothing else."""
    weights, optimizer = stacked(name)
    for t in range(UPDATES):
        step_of_in_parts(weights, optimizer, t)
    stepped, expected = values(weights, optimizer), by_itself(name)
    assert stepped.pop().tolist() == [UPDATES, 0, -UPDATES, -UPDATES]
    assert len(stepped) == len(expected)
    assert all(map(torch.equal, stepped, expected))
    members = {id(w) for group in optimizer.param_groups for w in group["params"]}
    assert members == {id(w) for _, w in weights}


@every
def test_a_resumed_optimizer_goes_on_to_the_last_bit(name: str) -> None:
    """Through a file that holds plain data and tensors alone; a dry update changes nothing."""
    whole, stopped, resumed = (stacked(name) for _ in range(3))
    for t in range(UPDATES):
        step_of_in_parts(*whole, t)
    for t in range(3):
        dry_update(stopped[1], [w for _, w in stopped[0]], gradients(stopped[0], 50 + t))
        step_of_in_parts(*stopped, t)
    saved = state.by_weight(stopped[1])
    file = io.BytesIO()
    torch.save([(w.data, saved[w]) for _, w in stopped[0]], file)
    file.seek(0)
    loaded: list[tuple[Tensor, Any]] = torch.load(file, weights_only=True)
    for (_, weight), (data, _) in zip(resumed[0], loaded, strict=True):
        weight.data.copy_(data)
    pairs = zip(resumed[0], loaded, strict=True)
    state.restore(resumed[1], {weight: saved_state for (_, weight), (_, saved_state) in pairs})
    for t in range(3, UPDATES):
        step_of_in_parts(*resumed, t)
    assert all(map(torch.equal, values(*resumed), values(*whole)))


def gradients(weights: Named, t: int) -> list[Tensor]:
    gradients = drawn(t)
    return [gradients.get(kind, torch.ones(4)) for kind, _ in weights]


@every
def test_entrywise_optimizers_are_declared_so(name: str) -> None:
    """A stack of an entrywise optimizer is one weight: half the time of an update, or less."""
    stack, tall = drawn(99)["experts"], nn.Parameter(drawn(99)["experts"].flatten(0, 1))
    matrices = [nn.Parameter(matrix.clone()) for matrix in stack]
    factory = optimizer_maker(name, precondition_every=3)
    for weights in (matrices, [tall]):
        optimizer = factory([("matrix", weight) for weight in weights])
        for t in range(UPDATES):
            parts = drawn(t)["experts"].flatten(0, 1).chunk(len(weights))
            for weight, gradient in zip(weights, parts, strict=True):
                weight.grad = gradient.clone()
            step_at(optimizer)
    assert is_entrywise(factory.func) == torch.equal(torch.cat(matrices), tall)


# Schedule-Free trains at y, and is evaluated and exported at x, their average, in every arm.

OURS = optimizer_maker("schedule_free_adamw", lr=0.02, weight_decay=0.0)


def bare(parameters: Parameters) -> Optimizer:
    optimizer = AdamWScheduleFree([weight for _, weight in parameters], lr=0.02)
    optimizer.train()
    return optimizer


def in_parts(parameters: Parameters) -> Optimizer:
    return OptimizerInParts(bare, parameters, is_entrywise=True)


@pytest.mark.parametrize("optimizer", [OURS, bare, in_parts], ids=["ours", "bare", "in parts"])
@pytest.mark.parametrize(
    "make",
    [
        sync,
        partial(pipedream_2bw, **PHASES),
        partial(pipedream, **PHASES),
        partial(constant_delay, delay=3, **PHASES),
    ],
    ids=["sync", "pipedream_2bw", "pipedream", "constant_delay"],
)
def test_it_is_evaluated_and_exported_at_the_average(
    make: Callable[..., Schedule], optimizer: Callable[[Parameters], Optimizer]
) -> None:
    """x of y = 0.9 x + 0.1 z; test_references.py has which average that is."""
    executor = toy.emulated(make(6, num_stages=2, num_microbatches=1), optimizer)
    rows = toy.batch(99)
    for first in range(6):
        toy.run(executor, (first, first + 1))
        before = toy.weights(executor)
        loss = executor.evaluate([rows])
        assert all(map(torch.equal, toy.weights(executor), before)), "looking changes nothing"

    model = nn.Sequential(*toy.modules(1)[0])
    exported = [t for stage in executor.stages for t in stage.weights().values()]
    masters = [(stage.optimizer, w) for stage in executor.stages for w in stage.versions.master]
    columns = zip(model.parameters(), exported, before, masters, strict=True)
    for parameter, average, y, (stepped, master) in columns:
        state = stepped.state[master]
        [z] = [part["z"] for part in state.get("parts", [state])]
        expected = (y - 0.1 * z.view_as(y)) / 0.9
        torch.testing.assert_close(average, expected, rtol=1e-12, atol=1e-14)
        assert not torch.equal(average, y)
        parameter.data.copy_(average)
    at_x = toy.loss(model(rows[:, :-1]), rows[:, 1:]).detach()
    assert abs(loss - float(at_x)) < 1e-12
