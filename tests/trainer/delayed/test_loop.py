"""What else a loop of one's own does: evaluate, scale losses, schedule, leave weights unused; and
where the weights lie.
"""

import copy
import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.corrections.compensation import LearningRate, Taylor, WeightPrediction
from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.delayed import DelayedOptimizer
from pipegap.trainer.models.layers import cross_entropy
from pipegap.trainer.optimizers.routing import kinds
from pipegap.trainer.parts import build_parts
from pipegap.trainer.schedules.recipes import constant_delay, pipedream_2bw, sync
from pipegap.trainer.trial import run_trial
from tests.support import choices, every_correction, small_sweep, toy
from tests.support.delayed import ADAMW, KEEP, PHASES, Loop, T
from tests.support.trials import rows


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


def test_weights_that_somebody_else_changed_are_not_lost_in_silence() -> None:
    loop = Loop(ADAMW)
    loop.run(range(2))
    with torch.no_grad():
        next(loop.module.parameters()).clamp_(-0.1, 0.1)
    with pytest.raises(RuntimeError, match="changed since the last step"):
        loop.delayed.step()


def test_writes_that_were_not_noticed_yet_are_noticed_by_a_copy() -> None:
    weight = nn.Parameter(torch.ones(2))
    delayed = DelayedOptimizer(torch.optim.SGD([weight], lr=0.1))
    weight.grad = torch.ones(2)
    for is_written in (False, True):
        delayed.step()
        if is_written:
            with torch.no_grad():
                weight.mul_(2)
        copied = copy.deepcopy(delayed)
        with pytest.raises(RuntimeError, match="changed since") if is_written else nullcontext():
            copied.step()


def test_a_step_that_failed_is_not_taken_for_none() -> None:
    """The model reads W(t) by then: a batch that is tried again would not be late."""
    weight = nn.Parameter(torch.ones(2))
    delayed = DelayedOptimizer(torch.optim.SGD([weight], lr=0.1))
    weight.grad = torch.ones(2)
    delayed.step()
    delayed.step()
    failing = delayed.register_step_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        delayed.step()
    failing.remove()
    with pytest.raises(RuntimeError, match="changed since the last step"):
        delayed.step()


WRONG: dict[str, dict[str, Any]] = {
    "delay=-1: must be an int from 0 to 4096": {"delay": -1},
    "delay=True: must be an int": {"delay": True},
    "delay=1.0: must be an int": {"delay": 1.0},
    "error_feedback=-1: must be a number": {"error_feedback": -1},
    "error_feedback=nan: must be a number": {"error_feedback": float("nan")},
    "keep=both: must be 'weights' or 'gradients'": {"keep": "both"},
    "clip_norm=0: must be larger than 0": {"clip_norm": 0},
    "num_updates=None: is required for a cooldown": {"synchronous_cooldown": 3},
    "num_updates=None: is required with a correction": {"correction": NoCorrection},
    "num_updates=0: must be an int from 1": {"num_updates": 0},
    "synchronous_start=1.5: must be a number of updates": {"synchronous_start": 1.5},
    "synchronous_cooldown=9: at most num_updates": {"synchronous_cooldown": 9, "num_updates": 5},
    "correction=taylor: must be a class": {"correction": "taylor", "num_updates": 5},
    "correction.decay=missing: is required": {
        "correction": partial(Taylor, coefficient=1.0),
        "num_updates": 5,
    },
    "keep=gradients: must be 'weights' with a correction that predicts": {
        "correction": partial(WeightPrediction, horizon=1.0),
        "num_updates": 5,
        "keep": "gradients",
    },
}


@pytest.mark.parametrize("says", WRONG)
def test_a_wrong_argument_is_named_in_one_line(says: str) -> None:
    with pytest.raises(BadInput) as caught:
        DelayedOptimizer(torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1), **WRONG[says])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_wrapped_is_refused() -> None:
    weights = [nn.Parameter(torch.ones(2, 2))]
    inner = torch.optim.SGD(weights, lr=0.1)
    with pytest.raises(BadInput, match=r"must be a torch\.optim\.Optimizer"):
        DelayedOptimizer(weights)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="delayed already"):
        DelayedOptimizer(DelayedOptimizer(inner))


class Asserts(torch.optim.SGD):
    """Needs its closure and says so on its own, as many that step twice do."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is not None, "a closure, please"
        closure()
        super().step()


class Asks(torch.optim.SGD):
    """Calls its closure where there is one."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if closure is not None:
            closure()
        super().step()


class Steps(torch.optim.SGD):
    """Has another one step, and asks for a number."""

    def step(self, scale: float) -> None:  # type: ignore[override]
        super().step()


class Holds(torch.optim.SGD):
    """Steps by an optimizer that it holds."""

    def __init__(self, weights: list[nn.Parameter]) -> None:
        super().__init__(weights)
        self.held = torch.optim.LBFGS(weights)


def of_library(name: str) -> Any:
    import pytorch_optimizer

    make = getattr(pytorch_optimizer, name)
    return partial(make, base_optimizer=torch.optim.SGD) if name.endswith("SAM") else make


NEEDS = {"LBFGS": lambda: torch.optim.LBFGS, "asserts": lambda: Asserts, "scale": lambda: Steps}
NEEDS |= {"holds": lambda: Holds}
NEEDS |= {name: partial(of_library, name) for name in ("SAM", "LookSAM", "FriendlySAM", "AliG")}


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("name", NEEDS)
def test_an_optimizer_that_needs_a_closure_is_refused(name: str, delay: int) -> None:
    make = NEEDS[name]()
    optimizer = make([nn.Parameter(torch.ones(2))])
    with pytest.raises(BadInput, match=r"needs a closure, or more, in step\(\)") as caught:
        DelayedOptimizer(optimizer, delay)
    assert "\n" not in str(caught.value)
    DelayedOptimizer(Asks([nn.Parameter(torch.ones(2))]), delay)


def test_a_step_that_is_to_be_recorded_is_refused() -> None:
    made = torch.optim.Adam([nn.Parameter(torch.ones(2))], differentiable=True)
    DelayedOptimizer(made, 0)
    with pytest.raises(BadInput, match="differentiable=True: must be False with a delay"):
        DelayedOptimizer(made)


class Falls(torch.optim.SGD):
    """Sets its own rate."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        self.param_groups[0]["lr"] *= 0.5


def test_two_that_set_one_rate_are_refused() -> None:
    weight = nn.Parameter(torch.ones(2))
    correction = partial(LearningRate, anneal=4)
    delayed = DelayedOptimizer(Falls([weight], lr=0.1), 2, correction=correction, num_updates=9)
    weight.grad = torch.ones(2)
    delayed.step()
    delayed.step()  # whose delay is 1: the correction leaves its rate
    with pytest.raises(RuntimeError, match="the optimizer sets its own learning rate, as the"):
        delayed.step()


def test_more_steps_than_were_said_are_refused() -> None:
    loop = Loop(ADAMW, num_updates=2)
    loop.run(range(2))
    with pytest.raises(RuntimeError, match="num_updates=2 are made"):
        loop.run(range(2, 3))


class Beneath(Optimizer):
    """Steps the vector that its weights are parts of."""

    def __init__(self, flat: Tensor, weights: list[nn.Parameter]) -> None:
        super().__init__(weights, {})
        self.flat = flat

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        given = [w.grad for w in self.param_groups[0]["params"] if w.grad is not None]
        self.flat.sub_(torch.cat(given), alpha=0.1)


class Binds(SGD):
    """Binds new memory to its weights at each step, as many optimizers do."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for weight in self.param_groups[0]["params"]:
            weight.data = weight.data.clone()
        super().step()


def trained(optimizer: DelayedOptimizer, weights: list[nn.Parameter]) -> list[list[Tensor]]:
    """What the model reads at each batch, and W(T)."""
    read = []
    for t in range(5):
        read.append([weight.detach().clone() for weight in weights])
        for weight in weights:
            weight.grad = torch.cos(weight.detach() + t)
        optimizer.step()
    optimizer.finish()
    return [*read, [weight.detach().clone() for weight in weights]]


@pytest.mark.parametrize("delay", [1, 2])
def test_weights_may_be_parts_of_a_vector(delay: int) -> None:
    flat = torch.arange(5.0)
    parts = [nn.Parameter(flat[:2]), nn.Parameter(flat[2:])]
    alone = [nn.Parameter(torch.arange(2.0)), nn.Parameter(torch.arange(2.0, 5.0))]
    ours = trained(DelayedOptimizer(Beneath(flat, parts), delay), parts)
    right = trained(DelayedOptimizer(SGD(alone, lr=0.1), delay), alone)
    assert [[w.tolist() for w in of] for of in ours] == [[w.tolist() for w in of] for of in right]
    assert torch.equal(flat, torch.cat(right[-1])), "which the model may read too"


def test_the_weights_of_a_loop_stay_where_they_are() -> None:
    weights, others = ([nn.Parameter(torch.arange(3.0))] for _ in range(2))
    places = [weight.data_ptr() for weight in weights]
    optimizer = DelayedOptimizer(SGD(weights, lr=0.1))
    right = trained(optimizer, weights)
    assert [weight.data_ptr() for weight in weights] == places
    bound = trained(DelayedOptimizer(Binds(others, lr=0.1)), others)
    assert all(map(torch.equal, chain(*bound), chain(*right)))


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_weight_may_be_named_twice() -> None:
    once, twice = nn.Parameter(torch.arange(3.0)), nn.Parameter(torch.arange(3.0))
    ours = trained(DelayedOptimizer(SGD([twice, twice], lr=0.1)), [twice])
    right = trained(DelayedOptimizer(SGD([once, once.clone().detach()], lr=0.2)), [once])
    for mine, others in zip(ours, right, strict=True):
        torch.testing.assert_close(mine[0], others[0])


class StepsInBackward(SGD):
    """Steps weights in hooks of the backward; what stands for it has one weight of no model, as the
    layer-wise GaLore of transformers has."""

    def __init__(self, weights: list[nn.Parameter]) -> None:
        super().__init__([torch.zeros(1, 1)], lr=0.1)
        for weight in weights:
            weight.register_post_accumulate_grad_hook(self._step_of)

    @staticmethod
    @torch.no_grad()
    def _step_of(weight: Tensor) -> None:
        weight.sub_(weight.grad, alpha=0.1)  # type: ignore[arg-type]
        weight.grad = None


NEVER_LATE: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "in the backward": StepsInBackward,
    "of a copy": lambda weights: SGD(copy.deepcopy(weights)),
}


@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("name", NEVER_LATE)
def test_an_optimizer_whose_weights_get_no_gradient_is_refused(name: str, keep: str) -> None:
    """At the first late step: its updates would count as late, and none would be."""
    weights = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]
    optimizer = DelayedOptimizer(NEVER_LATE[name](weights), keep=keep)  # type: ignore[arg-type]
    (weights[0] * weights[1]).sum().backward()
    optimizer.step()

    def late_steps() -> None:
        for _ in range(2):  # kept gradients are applied a step later
            (weights[0] * weights[1]).sum().backward()
            optimizer.step()

    with pytest.raises(BadInput, match="has no weight with a gradient") as caught:
        late_steps()
    assert "\n" not in str(caught.value)


def test_a_step_without_gradients_is_taken_after_one_with_some() -> None:
    """A batch may have nothing to learn; and a rank's shard may have no entries."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = DelayedOptimizer(SGD([weight], lr=0.1))
    for gradient in (torch.ones(2), None, torch.ones(2)):
        weight.grad = gradient
        optimizer.step()
    assert optimizer.num_taken == 3
    empty = DelayedOptimizer(SGD([nn.Parameter(torch.ones(0))]))
    empty.step()
    empty.step()


class SecondDerivatives(SGD):
    """Derives its gradients again, as AdaHessian does."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        [group] = self.param_groups
        gradients = [weight.grad for weight in group["params"]]
        torch.autograd.grad([g.sum() for g in gradients], group["params"])
        super().step()


@pytest.mark.parametrize("keep", KEEP)
def test_second_derivatives_of_late_gradients_are_refused(keep: str) -> None:
    """Their graph is of older weights. An optimizer that leaves the graph alone goes on."""
    for make, delay in ((SecondDerivatives, 0), (SGD, 1), (SecondDerivatives, 1)):
        weight = nn.Parameter(torch.ones(2))
        optimizer = DelayedOptimizer(make([weight], lr=0.1), delay, keep=keep)  # type: ignore[arg-type]
        is_refused = make is SecondDerivatives and delay > 0
        says = "create_graph=True: must be False with a delay"
        with pytest.raises(BadInput, match=says) if is_refused else nullcontext():
            for _ in range(3):
                loss = weight.pow(4).sum()
                [weight.grad] = torch.autograd.grad(loss, weight, create_graph=True)
                optimizer.step()


@pytest.mark.parametrize("delay", [0, 1])
def test_autocast_around_the_whole_loop_keeps_no_old_cast(delay: int) -> None:
    """Within its context it would read the first cast of each weight for ever."""

    def trained(whole: bool) -> Tensor:
        torch.manual_seed(0)
        layer, x = nn.Linear(4, 4), torch.randn(3, 4)
        optimizer = DelayedOptimizer(SGD(layer.parameters(), lr=0.5), delay)
        cast = partial(torch.autocast, "cpu", torch.bfloat16)
        with cast() if whole else nullcontext():
            for _ in range(4):
                optimizer.zero_grad()
                with nullcontext() if whole else cast():
                    loss = layer(x).square().mean()
                loss.backward()
                optimizer.step()
                with optimizer.newest(), cast():
                    layer(x)
        optimizer.finish()
        return layer.weight.detach()

    assert torch.equal(trained(whole=True), trained(whole=False))


# A loop of one's own makes the numbers of a trial, and of the bare optimizer, to the bit.

OPTIMIZERS = {"adamw": ADAMW, "muon": choices.optimizer_maker("muon", lr=0.02)}
FEEDBACK = partial(ErrorFeedback, coefficient=1.0, lag=1)
CUT = {"num_stages": 1, "num_microbatches": 2}
SYNCHRONOUS_ENDS = {"synchronous_start": 3, "synchronous_cooldown": 0.2}
ARMS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "sync": (sync(T, **CUT), NoCorrection, {"delay": 0}),
    "delay": (pipedream_2bw(T, **CUT, **PHASES), NoCorrection, {"error_feedback": 0}),
    "delay_ef": (pipedream_2bw(T, **CUT, **PHASES), FEEDBACK, {}),
    "three": (constant_delay(T, delay=3, **CUT, **PHASES), FEEDBACK, {"delay": 3}),
    "phases": (
        constant_delay(T, delay=2, **CUT, **SYNCHRONOUS_ENDS),
        FEEDBACK,
        {"delay": 2, "num_updates": T, **SYNCHRONOUS_ENDS},
    ),
}


@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_equals_the_emulated_executor(optimizer: str, arm: str, keep: str) -> None:
    schedule, correction, options = ARMS[arm]
    executor = toy.emulated(schedule, OPTIMIZERS[optimizer], correction, clip_norm=0.5)
    updates = toy.run(executor, schedule.phases)
    loop = Loop(OPTIMIZERS[optimizer], keep=keep, **options)
    losses = loop.run(range(T), microbatches=2, clip_norm=0.5)
    loop.delayed.finish()
    assert losses == [update.loss for update in updates]
    assert all(map(torch.equal, loop.weights(), toy.weights(executor)))
    assert loop.delayed.largest_delay == max(schedule.lags)


@pytest.mark.parametrize("name", [n for n in every_correction.NAMES if n != "none"])
def test_equals_the_executor_with_every_correction(name: str) -> None:
    """To the bit; but for rounding with a clip, which comes after the correction, as in a trial."""
    node = every_correction.settings(name)
    schedule = constant_delay(T, delay=2, num_stages=1, num_microbatches=1, **PHASES)
    make = every_correction.maker(node)
    options = {"delay": 2, "correction": every_correction.located(node), "num_updates": T}
    for norm, tolerance in ((math.inf, 0.0), (0.5, 1e-10)):
        executor = toy.emulated(schedule, ADAMW, make, clip_norm=norm)
        updates = toy.run(executor, schedule.phases)
        loop = Loop(ADAMW, clip_norm=norm, **options)
        losses = loop.run(range(T))
        assert losses == pytest.approx([update.loss for update in updates], rel=tolerance, abs=0)
        for ours, theirs in zip(loop.weights(), toy.weights(executor), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_equals_a_trial(optimizer: str, tmp_path: Path) -> None:
    """Its training losses and its final validation loss."""
    words = [f"optimizer={optimizer}", "pipeline=pipedream_2bw", "correction=error_feedback"]
    config = small_sweep.config(tmp_path, *words, "num_updates=8")
    result = run_trial({**config, "out": str(tmp_path / "trial")})
    parts = build_parts(config, 8)
    module = parts.model.stage(0, parts.model.split(1, config["seq_len"])).to_empty(device="cpu")
    parts.model.initialise(module, config["seed"])
    kind, settings = kinds(module), config["optimizer"]
    make = choices.optimizer_maker(optimizer, **settings)
    delayed = DelayedOptimizer(make([(kind[n], p) for n, p in module.named_parameters()]))
    scheduler = LambdaLR(delayed, parts.lr_factor)
    losses = []
    for t in range(8):
        rows_of_batch = parts.batches[t]
        delayed.zero_grad()
        loss = cross_entropy(module(rows_of_batch[:, :-1]), rows_of_batch[:, 1:])
        loss.backward()
        clip_grad_norm_(module.parameters(), config["clip_norm"])
        delayed.step()
        scheduler.step()
        losses.append(loss.item())
    assert losses == [row["train_loss"] for row in rows(tmp_path / "trial")]
    total, num_tokens = torch.zeros((), dtype=torch.float64), 0
    with delayed.newest(), torch.no_grad():
        for batch in parts.validation.batches(config["eval_batch_size"]):
            inputs, targets = batch[:, :-1], batch[:, 1:]
            total += cross_entropy(module(inputs), targets).double() * targets.numel()
            num_tokens += targets.numel()
    assert float(total / num_tokens) == result["final_val_loss"]


def test_groups_of_one_weight_each_may_have_one_shape() -> None:
    """As of an embedding and a head at two rates: groups are told apart by what they are."""
    twins = [torch.nn.Parameter(torch.ones(3, 2)) for _ in range(2)]
    sgd = torch.optim.SGD([{"params": [twin], "lr": 0.1 * (n + 1)} for n, twin in enumerate(twins)])
    delayed = DelayedOptimizer(sgd, 1, 0.0)
    for _ in range(2):
        for twin in twins:
            twin.grad = torch.ones_like(twin)
        delayed.step()
    with delayed.newest():
        assert [twin.mean().item() for twin in twins] == pytest.approx([0.8, 0.6])
