"""The setting in which a delayed update is compared with its equations."""

import sys
import unittest
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from functools import cache, partial
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import LBFGS, SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from pipegap.trainer.delayed import DelayedOptimizer
from pipegap.trainer.optimizers.entrywise import adamw, sgd
from pipegap.trainer.optimizers.routing import kinds
from pipegap.trainer.schedules.operations import Schedule, delays
from pipegap.trainer.schedules.proof import check
from tests.oracles import corrections, semantics
from tests.support import toy

T = 10
ADAMW = partial(
    adamw, lr=0.02, momentum=0.9, variance_decay=0.95, eps=1e-8, weight_decay=0.1, fused=False
)
SGD_OF_DELAYED = partial(sgd, lr=0.3, momentum=0.9, nesterov=True, weight_decay=0.01, fused=False)
PHASES = {"synchronous_start": 0, "synchronous_cooldown": 0}


def expected(
    optimizer: Callable[..., torch.optim.Optimizer],
    dtype: torch.dtype,
    version: Callable[[int], int],
    *,
    correction: corrections.Plain | None = None,
    coefficient: float = 0.0,
    clip_norm: float = float("inf"),
    microbatches: int = 1,
) -> tuple[list[semantics.Weights], list[float]]:
    """The oracle's run in one stage, with error feedback of lag 1 unless another correction."""
    feedback = SimpleNamespace(coefficient=coefficient, lag=1)
    return expected_of_stages(
        optimizer,
        dtype,
        (T,),  # no version is too old to be read
        lambda t, _: version(t),
        correction or corrections.ErrorFeedback(feedback, T),
        clip_norm=clip_norm,
        microbatches=microbatches,
    )


def expected_of_stages(
    optimizer: Callable[..., torch.optim.Optimizer],
    dtype: torch.dtype,
    lags: Sequence[int],
    version: Callable[[int, int], int],
    correction: corrections.Plain,
    *,
    clip_norm: float = float("inf"),
    microbatches: int = 1,
) -> tuple[list[semantics.Weights], list[float]]:
    """The oracle's run of a stage for each of `lags`; it reads `version(t, lag)`."""
    torch.set_num_threads(1)
    stages = toy.modules(len(lags), dtype)
    batches = [(b[:, :-1], b[:, 1:]) for b in map(toy.batch, range(T))]
    peak = optimizer.keywords["lr"]  # type: ignore[attr-defined]
    return semantics.train(
        stages,
        lags,
        lambda stage: optimizer([(kinds(stage)[name], p) for name, p in stage.named_parameters()]),
        lambda t: peak * toy.lr_factor(t),
        batches,
        toy.loss,
        version,
        correction,
        clip_norm=clip_norm,
        microbatches=microbatches,
    )


def counted(schedule: Schedule) -> list[list[int]]:
    """Delay of every batch, one list per stage, over all phases; every phase is proven possible."""
    by_stage: list[list[int]] = [[] for _ in range(schedule.num_stages)]
    for first, last in pairwise(schedule.phases):
        operations = schedule.operations(first, last)
        check(operations, schedule.lags, first)
        for ops in operations:
            for stage, of_stage in delays(ops).items():
                by_stage[stage] += of_stage
    return by_stage


def assert_equal(executor: toy.Emulated, reference: semantics.Weights) -> None:
    for ours, theirs in zip(toy.weights(executor), reference, strict=True):
        assert torch.equal(ours, theirs)


# A delayed loop that keeps every version, and the same loop around a `DelayedOptimizer`.
#
# Gradients are a function of weights and batch, so that a loop is its optimizer, its weights and
# what it `does` to both before a step.

T_OF_NAIVE_LOOP = 6
SHAPES = ((4, 3), (3,), (), (0,))
Make = Callable[[list[nn.Parameter]], Optimizer]
Does = Callable[[Any, list[nn.Parameter], int], object]


def weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(s, generator=generator).double()) for s in SHAPES]


def gradients(at: Sequence[Tensor], t: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + t)
    noise = [torch.randn(w.shape, generator=generator) for w in at]
    return [torch.sin(3 * w.detach()) + n.to(w) / 2 for w, n in zip(at, noise, strict=True)]


def nothing(optimizer: Any, weights: list[nn.Parameter], t: int) -> None:
    """What a loop does that only trains."""


def give(weights: Sequence[nn.Parameter], at: Sequence[Tensor], t: int) -> None:
    """The gradients of batch t at these versions; sparse ones of weights that are marked so."""
    for weight, gradient in zip(weights, gradients(at, t), strict=True):
        form = gradient.to_sparse() if hasattr(weight, "is_looked_up") else gradient
        weight.grad = form if weight.requires_grad else None


def _copies(weights: Sequence[Tensor]) -> list[Tensor]:
    return [weight.detach().clone() for weight in weights]


def naive(make: Make, delay: int, coefficient: float, does: Does = nothing) -> list[Tensor]:
    """W(T) by the equations of docs/semantics.md."""
    torch.manual_seed(0)
    live = weights()
    optimizer = make(live)
    versions: list[list[Tensor]] = []
    earlier: list[Tensor] = []
    for t in range(T_OF_NAIVE_LOOP):
        does(optimizer, live, t)
        first = _copies(live)
        for version in versions:  # weights that come later have always been what they are now
            version.extend(first[len(version) :])
        versions.append(first)
        give(live, versions[max(0, t - delay)], t)
        optimizer.step()
        update = [a - b for a, b in zip(first, _copies(live), strict=True)]
        for weight, now, before in zip(live, update, earlier, strict=False):
            if delay and before.abs().sum():
                weight.data += coefficient * (before - now)
        earlier = update
    return _copies(live)


def delayed(
    make: Make, delay: int, coefficient: float, does: Does = nothing, **options: Any
) -> Any:
    """W(T) of a `DelayedOptimizer`."""
    torch.manual_seed(0)
    own = weights()
    optimizer = DelayedOptimizer(make(own), delay, coefficient, **options)
    for t in range(T_OF_NAIVE_LOOP):
        optimizer.zero_grad()
        does(optimizer, own, t)
        give(own, own, t)
        optimizer.step()
    optimizer.finish()
    return _copies(own)


def are_equal(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


# A training loop as people write it, around a `DelayedOptimizer`, on the toy model.

KEEP = ("weights", "gradients")
"""How a delay can be made."""


class Loop:
    """Model, wrapped optimizer, scheduler. `optimizer` gets pairs of a kind and a weight."""

    def __init__(self, optimizer: Callable[..., Optimizer], **options: Any) -> None:
        torch.set_num_threads(1)
        self.module: nn.Module = toy.modules(1)[0]
        kind = kinds(self.module)
        inner = optimizer([(kind[name], p) for name, p in self.module.named_parameters()])
        self.delayed = DelayedOptimizer(inner, **options)
        self.scheduler = LambdaLR(self.delayed, toy.lr_factor)

    def run(
        self, batches: Iterable[int], microbatches: int = 1, clip_norm: float | None = None
    ) -> list[float]:
        """The mean loss of each batch."""
        losses = []
        for t in batches:
            self.delayed.zero_grad()
            total = 0.0
            for rows in toy.batch(t).chunk(microbatches):
                value = toy.loss(self.module(rows[:, :-1]), rows[:, 1:]) / microbatches
                value.backward()
                total += value.item()
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(self.module.parameters(), clip_norm)
            self.delayed.step()
            self.scheduler.step()
            losses.append(total)
        return losses

    def weights(self) -> list[Tensor]:
        """The newest ones, as the model shows them."""
        with self.delayed.newest():
            return [weight.detach().clone() for weight in self.module.parameters()]


# An optimizer that steps the memory beneath the weights, as ZeRO does by `bucket_view`s.


class Joined(SGD):
    """SGD on vectors: the weights become parts of one, or, `each`, of one for each weight."""

    def __init__(self, weights: Sequence[nn.Parameter], lr: float, *, each: bool) -> None:
        super().__init__(weights, lr=lr)
        self.parts = [[weight] for weight in weights] if each else [[*weights]]
        self.joined = [parameters_to_vector(of).detach().clone() for of in self.parts]
        for vector, of in zip(self.joined, self.parts, strict=True):
            vector_to_parameters(vector, of)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Steps the vectors alone."""
        for vector, of in zip(self.joined, self.parts, strict=True):
            gradient = parameters_to_vector(weight.grad for weight in of)
            vector.sub_(gradient, alpha=self.param_groups[0]["lr"])


# torch's own list of its optimizers, with the options that torch's tests try.

CLASSES = [
    name
    for name in torch.optim.__all__
    if isinstance(kind := getattr(torch.optim, name), type) and kind not in (Optimizer, LBFGS)
]
"""torch's optimizers, but for the one that needs a closure."""


@cache
def listed() -> Any:
    """The module that has torch's list: imported late, as it takes seconds."""
    expecttest = ModuleType("expecttest")  # it asks for this, and for no more than this of it
    vars(expecttest)["TestCase"] = unittest.TestCase
    sys.modules.setdefault("expecttest", expecttest)
    from torch.testing._internal import common_optimizers

    return common_optimizers


def of(name: str) -> dict[str, Make]:
    """Options → what makes the optimizer of this name of weights.

    Options that record the step (`differentiable`) are left out.
    """
    [info] = [info for info in listed().optim_db if info.optim_cls.__name__ == name]
    return {str(options): partial(_made, info, options) for options in _options(info)}


def _options(info: Any) -> Iterator[dict[str, Any]]:
    device, dtype = torch.device("cpu"), torch.float64
    for given in listed()._get_optim_inputs_including_global_cliquey_kwargs(device, dtype, info):
        if not given.kwargs.get("differentiable"):
            yield given.kwargs


def _made(info: Any, options: dict[str, Any], weights: list[nn.Parameter]) -> Optimizer:
    if info.optim_cls is torch.optim.Muon:  # takes matrices alone
        weights = [weight for weight in weights if weight.dim() == 2]
    if info.optim_cls is torch.optim.Adafactor:  # divides by the number of entries
        weights = [weight for weight in weights if weight.numel()]
    made: Optimizer = info.optim_cls(weights, **deepcopy(options))
    return made
