"""What a loop or an optimizer attaches to a weight, a group or itself, beside a naive loop."""

import gc
import weakref
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from pipegap.trainer.delayed import DelayedOptimizer
from tests.support.naive_loop import Make, are_equal, delayed, naive

Weights = list[nn.Parameter]


class Marked(Optimizer):
    """Reads a multiplier of the rate from each weight, and whether it is trained; counts, and
    lowers its rate, in its groups; keeps a mean at itself and a count beside its weights."""

    def __init__(self, weights: Weights, lr: float | Tensor = 0.1, **options: Any) -> None:
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


def marks(optimizer: Any, weights: Weights, t: int) -> None:
    if t == 0:
        weights[0].multiplier, weights[2].multiplier = 0.3, 2.0  # type: ignore[assignment]


def marks_anew(optimizer: Any, weights: Weights, t: int) -> None:
    weights[0].multiplier = 1.0 + t  # type: ignore[assignment]


def freezes(optimizer: Any, weights: Weights, t: int) -> None:
    weights[0].requires_grad_(t not in (2, 3))
    weights[1].requires_grad_(t > 1)


def schedules(name: str) -> Callable[[Any, Weights, int], None]:
    def does(optimizer: Any, weights: Weights, t: int) -> None:
        optimizer.param_groups[0][name] = 0.2 / (1 + t)

    return does


def fills(optimizer: Any, weights: Weights, t: int) -> None:
    """A rate tensor that the loop owns: it holds the tensor that it made."""
    rate = optimizer.param_groups[0]["lr"]
    if t == 0:
        weights[0].rate = rate
    assert rate is weights[0].rate  # type: ignore[comparison-overlap]
    rate.fill_(0.1 / (1 + t))


def clears(optimizer: Any, weights: Weights, t: int) -> None:
    if t == 3:
        optimizer.state.clear()


def replaces(optimizer: Any, weights: Weights, t: int) -> None:
    if t == 3:
        optimizer.state = defaultdict(dict)


def writes(optimizer: Any, weights: Weights, t: int) -> None:
    if t == 3:
        optimizer.state[weights[0]]["exp_avg"].fill_(0.5)
        optimizer.state[weights[1]]["exp_avg"] = torch.ones(3).double()


def adds(to: Callable[[Any], Any]) -> Callable[[Any, Weights, int], None]:
    def does(optimizer: Any, weights: Weights, t: int) -> None:
        if t in (0, 3):
            weights.append(nn.Parameter(torch.linspace(-1, 1, 5 + t).double()))
            to(optimizer).add_param_group({"params": [weights[-1]], "lr": 0.03})

    return does


def appends(optimizer: Any, weights: Weights, t: int) -> None:
    if t == 2:
        weights.append(nn.Parameter(torch.linspace(-1, 1, 5).double()))
        optimizer.param_groups[0]["params"].insert(1, weights[-1])


def drops(optimizer: Any, weights: Weights, t: int) -> None:
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

    def trained(replaces: bool) -> tuple[DelayedOptimizer, Weights, weakref.ref[nn.Parameter]]:
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
