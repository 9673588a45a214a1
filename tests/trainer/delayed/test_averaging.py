"""An optimizer that is evaluated at other weights than it trains on shows those for every delay."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Any

import pytest
import pytorch_optimizer
import schedulefree
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.delayed import DelayedOptimizer
from tests.support import toy

T = 7
Weights = list[Tensor]


class Swaps(torch.optim.SGD):
    """Stochastic gradient descent that swaps its weights with their average to be evaluated."""

    is_swapped = False

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            state.setdefault("average", weight.detach().clone()).lerp_(weight.detach(), 0.1)

    def eval(self) -> None:
        if not self.is_swapped:
            self._swap()

    def train(self) -> None:
        if self.is_swapped:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        self.is_swapped = not self.is_swapped
        for weight, state in self.state.items():
            kept = weight.clone()
            weight.copy_(state["average"])
            state["average"].copy_(kept)


def schedule_free(y: Tensor, state: Any, group: Any) -> Tensor:
    """x of y = β x + (1 − β) z (arXiv 2405.15682, eq. 3)."""
    beta = group["momentum"] if "momentum" in group else group["betas"][0]
    return (y - (1 - beta) * state["z"]) / beta


def splus(weight: Tensor, state: Any, group: Any) -> Tensor:
    """The average from zero, without its bias (arXiv 2506.07254)."""
    return state["ema"] / (1 - group["ema_rate"] ** group["step"])


def swapped(weight: Tensor, state: Any, group: Any) -> Tensor:
    return state["average"].clone()


Average = Callable[[Tensor, Any, Any], Tensor]
OPTIMIZERS: dict[str, tuple[Callable[..., Optimizer], Average]] = {
    "adamw": (partial(schedulefree.AdamWScheduleFree, lr=0.02, weight_decay=0.1), schedule_free),
    "sgd": (partial(schedulefree.SGDScheduleFree, lr=0.5, warmup_steps=3), schedule_free),
    "radam": (partial(schedulefree.RAdamScheduleFree, lr=0.02, betas=(0.8, 0.9)), schedule_free),
    "other adamw": (partial(pytorch_optimizer.ScheduleFreeAdamW, lr=0.02), schedule_free),
    "other sgd": (partial(pytorch_optimizer.ScheduleFreeSGD, lr=0.5), schedule_free),
    "splus": (partial(pytorch_optimizer.SPlus, lr=0.1), splus),
    "swaps": (partial(Swaps, lr=0.1), swapped),
}
every = pytest.mark.parametrize("name", OPTIMIZERS)
ARMS: list[dict[str, Any]] = [
    {"delay": 0},
    *({"delay": delay, "keep": keep} for delay in (1, 3) for keep in ("weights", "gradients")),
]
in_every_arm = pytest.mark.parametrize(
    "arm", ARMS, ids=lambda arm: " ".join(map(str, arm.values()))
)


def gradients(module: nn.Module, t: int) -> float:
    module.zero_grad()
    rows = toy.batch(t)
    loss = toy.loss(module(rows[:, :-1]), rows[:, 1:])
    loss.backward()
    return loss.item()


def naive(name: str, delay: int) -> tuple[list[float], list[Weights]]:
    """Losses, and after 1 … T updates the weights to evaluate, of the bare optimizer."""
    make, average = OPTIMIZERS[name]
    live, late = toy.modules()[0], toy.modules()[0]
    bare = make(live.parameters())
    bare.train()  # type: ignore[attr-defined]
    versions, losses, shown = [copy.deepcopy(live.state_dict())], [], []
    for t in range(T):
        late.load_state_dict(versions[max(0, t - delay)])
        losses.append(gradients(late, t))
        for mine, theirs in zip(live.parameters(), late.parameters(), strict=True):
            mine.grad = theirs.grad
        bare.step()
        versions.append(copy.deepcopy(live.state_dict()))
        [group] = bare.param_groups
        shown.append([average(w.detach(), bare.state[w], group) for w in live.parameters()])
    return losses, shown


class Loop:
    """A loop that evaluates after each update."""

    def __init__(
        self, name: str, arm: dict[str, Any], wrap: Callable[..., Any] = lambda o: o
    ) -> None:
        self.module = toy.modules()[0]
        inner = OPTIMIZERS[name][0](self.module.parameters())
        self.delayed = DelayedOptimizer(wrap(inner), error_feedback=0.0, **arm)
        inner.train()  # type: ignore[attr-defined]

    def run(self, first: int, last: int) -> tuple[list[float], list[Weights]]:
        losses, shown = [], []
        for t in range(first, last):
            losses.append(gradients(self.module, t))
            self.delayed.step()
            shown.append(self.evaluated())
        return losses, shown

    def evaluated(self) -> Weights:
        with self.delayed.newest():
            return [weight.detach().clone() for weight in self.module.parameters()]


def assert_close(shown: list[Weights], expected: list[Weights]) -> None:
    pairs = chain.from_iterable(
        zip(a, b, strict=True) for a, b in zip(shown, expected, strict=True)
    )
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


@every
@in_every_arm
def test_shows_the_average(name: str, arm: dict[str, Any]) -> None:
    """And evaluations change no bit of the training."""
    losses, averages = naive(name, arm["delay"])
    loop = Loop(name, arm)
    seen, shown = loop.run(0, T)
    assert seen == losses
    lag = arm["delay"] if arm.get("keep") == "gradients" else 0
    assert_close(shown[lag:], averages[: T - lag])
    loop.delayed.finish()
    assert_close([loop.evaluated()], averages[-1:])


@every
@in_every_arm
def test_a_state_saved_while_it_is_evaluated_goes_on_to_the_bit(
    name: str, arm: dict[str, Any]
) -> None:
    """The model's saved weights are the average, in every arm alike."""
    whole = Loop(name, arm)
    losses, shown = whole.run(0, T)
    first, second = Loop(name, arm), Loop(name, arm)
    first.run(0, 4)
    with first.delayed.newest():
        saved = copy.deepcopy((first.module.state_dict(), first.delayed.state_dict()))
    assert all(map(torch.equal, saved[0].values(), shown[3]))
    second.module.load_state_dict(saved[0])
    second.delayed.load_state_dict(saved[1])
    assert all(map(torch.equal, second.evaluated(), shown[3]))
    assert second.run(4, T)[0] == losses[4:]
    assert all(map(torch.equal, second.evaluated(), shown[-1]))


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "swaps"])
@pytest.mark.parametrize("delay", [0, 1])
def test_goes_on_from_a_bare_optimizer_that_was_saved_as_its_library_asks(
    name: str, delay: int
) -> None:
    """In eval(), with the average in the model; it may be evaluated and saved before a step."""
    make, _ = OPTIMIZERS[name]
    module = toy.modules()[0]
    bare: Any = make(module.parameters())
    bare.train()
    for t in range(3):
        gradients(module, t)
        bare.step()
    bare.eval()
    saved = copy.deepcopy((module.state_dict(), bare.state_dict()))
    bare.train()
    straight = [gradients(module, 3)]
    bare.step()
    loop = Loop(name, {"delay": delay})
    loop.module.load_state_dict(saved[0])
    loop.delayed.load_state_dict(saved[1])
    loop.delayed.eval()
    assert_close([[*loop.module.state_dict().values()]], [[*saved[0].values()]])
    again = copy.deepcopy((loop.module.state_dict(), loop.delayed.state_dict()))
    loop.delayed.train()
    losses = loop.run(3, 4)[0]
    assert losses == pytest.approx(straight, rel=1e-12)
    other = Loop(name, {"delay": delay})
    other.module.load_state_dict(again[0])
    other.delayed.load_state_dict(again[1])
    assert other.run(3, 4)[0] == losses


@every
def test_feedback_is_refused(name: str) -> None:
    inner = OPTIMIZERS[name][0](toy.modules()[0].parameters())
    with pytest.raises(BadInput, match="must be 0 with an optimizer that averages"):
        DelayedOptimizer(inner)


@pytest.mark.parametrize("keep", ["weights", "gradients"])
def test_an_average_of_the_loops_own_is_of_the_newest_weights_within_newest(keep: str) -> None:
    """In torch's order, right after the step, it is of weights that are τ updates older."""
    delay = 2
    averages = {}
    for order in ("newest", "torch's"):
        module = toy.modules()[0]
        versions = [[weight.detach().clone() for weight in module.parameters()]]
        optimizer = DelayedOptimizer(
            torch.optim.AdamW(module.parameters(), lr=0.02),
            delay,
            keep=keep,  # type: ignore[arg-type]
        )
        averaged = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        for t in range(T):
            gradients(module, t)
            optimizer.step()
            with optimizer.newest():
                versions.append([weight.detach().clone() for weight in module.parameters()])
            with optimizer.newest() if order == "newest" else nullcontext():
                averaged.update_parameters(module)
        averages[order] = [*averaged.module.parameters()]
        shift = delay if order != "newest" and keep == "weights" else 0
        expected = [versions[max(0, t - shift)] for t in range(1, T + 1)]
        right = expected[0]
        for version in expected[1:]:
            right = [0.5 * mean + 0.5 * weight for mean, weight in zip(right, version, strict=True)]
        for ours, theirs in zip(averages[order], right, strict=True):
            torch.testing.assert_close(ours.detach(), theirs, rtol=1e-12, atol=1e-14)
