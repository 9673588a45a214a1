"""An optimizer that is evaluated at other weights than it trains on shows those for every delay."""

import copy
import gc
import weakref
from collections import defaultdict
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
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.delayed import DelayedOptimizer
from tests.support import toy
from tests.support.delayed import Make, are_equal, delayed, naive

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


def naive_of_averaging(name: str, delay: int) -> tuple[list[float], list[Weights]]:
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
    losses, averages = naive_of_averaging(name, arm["delay"])
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


# What a loop or an optimizer attaches to a weight, a group or itself, beside a naive loop.

WeightsOfAttached = list[nn.Parameter]


class Marked(Optimizer):
    """Reads a multiplier of the rate from each weight, and whether it is trained; counts, and
    lowers its rate, in its groups; keeps a mean at itself and a count beside its weights."""

    def __init__(
        self, weights: WeightsOfAttached, lr: float | Tensor = 0.1, **options: Any
    ) -> None:
        super().__init__(weights, {"lr": lr, "shrink": 0.01, "steps": 0, **options})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.state["seen"] = self.state.get("seen", 0) + 1
        for group in self.param_groups:
            group["steps"] += 1
            if "falls" in group:
                group["lr"] *= group["falls"]
            for weight in group["params"]:
                if weight.requires_grad and weight.grad is not None:
                    rate = group["lr"] * getattr(weight, "multiplier", 1.0) / group["steps"]
                    weight.mul_(1 - group["shrink"] / self.state["seen"])
                    weight.sub_(rate * weight.grad)


def marks(optimizer: Any, weights: WeightsOfAttached, t: int) -> None:
    if t == 0:
        weights[0].multiplier, weights[2].multiplier = 0.3, 2.0  # type: ignore[assignment]


def marks_anew(optimizer: Any, weights: WeightsOfAttached, t: int) -> None:
    weights[0].multiplier = 1.0 + t  # type: ignore[assignment]


def freezes(optimizer: Any, weights: WeightsOfAttached, t: int) -> None:
    weights[0].requires_grad_(t not in (2, 3))
    weights[1].requires_grad_(t > 1)


def schedules(name: str) -> Callable[[Any, WeightsOfAttached, int], None]:
    def does(optimizer: Any, weights: WeightsOfAttached, t: int) -> None:
        optimizer.param_groups[0][name] = 0.2 / (1 + t)

    return does


def fills(optimizer: Any, weights: WeightsOfAttached, t: int) -> None:
    """A rate tensor that the loop owns: it holds the tensor that it made."""
    rate = optimizer.param_groups[0]["lr"]
    if t == 0:
        weights[0].rate = rate
    assert rate is weights[0].rate  # type: ignore[comparison-overlap]
    rate.fill_(0.1 / (1 + t))


def clears(optimizer: Any, weights: WeightsOfAttached, t: int) -> None:
    if t == 3:
        optimizer.state.clear()


def replaces(optimizer: Any, weights: WeightsOfAttached, t: int) -> None:
    if t == 3:
        optimizer.state = defaultdict(dict)


def writes(optimizer: Any, weights: WeightsOfAttached, t: int) -> None:
    if t == 3:
        optimizer.state[weights[0]]["exp_avg"].fill_(0.5)
        optimizer.state[weights[1]]["exp_avg"] = torch.ones(3).double()


def adds(to: Callable[[Any], Any]) -> Callable[[Any, WeightsOfAttached, int], None]:
    def does(optimizer: Any, weights: WeightsOfAttached, t: int) -> None:
        if t in (0, 3):
            weights.append(nn.Parameter(torch.linspace(-1, 1, 5 + t).double()))
            to(optimizer).add_param_group({"params": [weights[-1]], "lr": 0.03})

    return does


def appends(optimizer: Any, weights: WeightsOfAttached, t: int) -> None:
    if t == 2:
        weights.append(nn.Parameter(torch.linspace(-1, 1, 5).double()))
        optimizer.param_groups[0]["params"].insert(1, weights[-1])


def drops(optimizer: Any, weights: WeightsOfAttached, t: int) -> None:
    if t == 3:
        del optimizer.param_groups[0]["params"][1]


def inner(optimizer: Any) -> Any:
    return optimizer.optimizer if isinstance(optimizer, DelayedOptimizer) else optimizer


ADAMW = partial(AdamW, lr=0.05)
BOTH: dict[str, tuple[Make, Callable[..., None]]] = {
    "multiplier": (Marked, marks),
    "freezes": (Marked, freezes),
    "freezes adamw": (ADAMW, freezes),
    "rate": (Marked, schedules("lr")),
    "an option of any name": (Marked, schedules("shrink")),
    "eps": (ADAMW, schedules("eps")),
    "a rate that the optimizer sets": (partial(Marked, falls=0.9), marks),
    "a rate tensor that it sets": (lambda w: Marked(w, torch.tensor(0.1), falls=0.9), marks),
    "a rate tensor that the loop fills": (lambda w: SGD(w, lr=torch.tensor(0.1)), fills),
    "a fallen rate that the loop sets": (partial(Marked, falls=0.9), schedules("falls")),
    "a group": (ADAMW, adds(lambda optimizer: optimizer)),
    "a group of the inner one": (ADAMW, adds(inner)),
    "a weight into a group": (ADAMW, appends),
}
AT_ONCE: dict[str, tuple[Make, Callable[..., None]]] = {
    "multipliers": (Marked, marks_anew),
    "a weight out of a group": (ADAMW, drops),
    "clears": (ADAMW, clears),
    "replaces": (ADAMW, replaces),
    "writes": (ADAMW, writes),
}
"""What counts from the next update that is made, which is the loop's with keep="weights" alone."""


@pytest.mark.parametrize(("delay", "coefficient"), [(0, 0.0), (1, 0.0), (1, 1.0), (3, 1.0)])
@pytest.mark.parametrize("case", [*BOTH, *AT_ONCE])
def test_what_is_attached(case: str, delay: int, coefficient: float) -> None:
    make, does = (BOTH | AT_ONCE)[case]
    right = naive(make, delay, coefficient, does)
    assert not are_equal(right[:4], naive(make, delay, coefficient)[:4]) or "group" in case
    for keep in ("weights", "gradients") if case in BOTH else ("weights",):
        assert are_equal(delayed(make, delay, coefficient, does, keep=keep), right), keep


@pytest.mark.parametrize("keep", ["weights", "gradients"])
def test_a_loop_sees_what_the_optimizer_sets(keep: str) -> None:
    """As much of it as is made, beside what it sets itself."""
    own = [nn.Parameter(torch.ones(2))]
    optimizer = DelayedOptimizer(Marked(own, torch.tensor(1.0), falls=0.5), keep=keep)  # type: ignore[arg-type]
    [group] = optimizer.param_groups
    rate = group["lr"]
    for t in range(3):
        own[0].grad = torch.ones(2)
        group["shrink"] = 0.1 * t
        optimizer.step()
        made = t + 1 if keep == "weights" else t
        assert (group["steps"], group["shrink"]) == (made, 0.1 * t)
        assert group["lr"] is rate
        assert rate.item() == 0.5**made


@pytest.mark.parametrize(("keep", "delay"), [("weights", 0), ("weights", 2), ("gradients", 2)])
def test_weights_that_left_count_in_no_clip_and_are_freed(keep: str, delay: int) -> None:
    """As pruning and densification replace weights: a large gradient stays at the old one."""

    def trained(
        replaces: bool,
    ) -> tuple[DelayedOptimizer, WeightsOfAttached, weakref.ref[nn.Parameter]]:
        first, second = (nn.Parameter(torch.linspace(-1, 1, 4).double()) for _ in range(2))
        optimizer = DelayedOptimizer(
            AdamW([first, second] if replaces else [first], lr=0.05),
            delay,
            keep=keep,  # type: ignore[arg-type]
            clip_norm=0.5,
        )
        [group] = optimizer.param_groups
        weights = [first]
        for t in range(9):
            if t == 1 and replaces:
                del group["params"][1]
                optimizer.state.pop(second, None)
            if t == 1:
                weights.append(nn.Parameter(torch.linspace(0, 1, 3).double()))
                group["params"].append(weights[-1])
            for weight in weights:
                weight.grad = torch.cos(weight.detach() + t)
            second.grad = torch.full_like(second, 0.0 if t == 0 else 1e3)
            optimizer.step()
        optimizer.finish()
        return optimizer, weights, weakref.ref(second)

    (optimizer, ours, dropped), (_, right, _) = trained(True), trained(False)
    gc.collect()
    assert all(map(torch.equal, ours, right))
    assert dropped() is None, f"{optimizer} holds it"
