"""The setting in which a delayed update is compared with its equations."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import torch

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
SGD = partial(sgd, lr=0.3, momentum=0.9, nesterov=True, weight_decay=0.01, fused=False)
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
