"""`Schedule2BW` on true ranks makes the numbers of the naive equations, to the last bit."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from pipegap.trainer.base.errors import GangFailed
from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.ranks.groups import Heartbeat
from pipegap.trainer.torch_pipelining.sums import LateSums
from pipegap.trainer.torch_pipelining.two_versions import TwoVersions
from tests.support import every_correction, every_optimizer
from tests.support.lazy_kernels import OF_2BW
from tests.support.torch_expected import differences, expected, of_our_pipeline
from tests.support.torch_pipeline import (
    LOOSE,
    OF_TORCH,
    Case,
    T,
    Training,
    as_nccl_rank,
    as_rank,
    on_ranks,
)

DAILY: dict[int, list[Case]] = {
    2: [
        Case(2, error_feedback=1.0, drains={3: "evaluate", 5: "save"}),
        Case(4, "torch_muon", 1.0, drains={1: "save", 4: "save in parts"}),
        Case(4, "our_muon", slack=True, clip_norm=LOOSE),
        Case(2, "torch_muon", 1.0, shares="blocks"),
        Case(2, correction="weight_prediction", drains={3: "save"}),  # its twins lie alone
        Case(2, correction="taylor"),  # whose gradients see the newest weights
    ],
    3: [
        Case(3, "sgd", 1.0, shares="stages", drains={2: "evaluate", 4: "save"}),
        Case(6, "adamw", 1.0, drains={5: "drain"}, synchronous_start=2),
    ],
}


def assert_all_equal(num_stages: int, cases: list[Case], **program: Any) -> None:
    for case, trained in zip(cases, on_ranks(num_stages, cases, **program), strict=True):
        assert not differences(trained, expected(case, num_stages)), case


@pytest.mark.parametrize("num_stages", DAILY)
def test_equals_the_equations(num_stages: int) -> None:
    assert_all_equal(num_stages, DAILY[num_stages])


@pytest.mark.parametrize("num_stages", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_equals_our_own_pipeline(num_stages: int) -> None:
    """Without an oracle in between: the executor of a trial makes the same weights and losses."""
    names = ["muon", "adamw", "muonh"]  # muonh: norms that a correction keeps
    if num_stages == 4:  # kron draws random numbers for one weight after the other
        names = [name for name in every_optimizer.NAMES if name != "kron"]
    averaging = "schedule_free_adamw"  # takes no Error Feedback
    cases = [Case(4, f"our_{name}", error_feedback=float(name != averaging)) for name in names]
    for name, case, trained in zip(names, cases, on_ranks(num_stages, cases), strict=True):
        assert not differences(trained, of_our_pipeline(case, name, num_stages)), name


@pytest.mark.slow
def test_every_correction() -> None:
    ends = {1: "save in parts", 3: "save", 5: "save in parts"}
    names = [name for name in every_correction.NAMES if not every_correction.looks_ahead(name)]
    cases = [Case(2, correction=name, drains=ends) for name in names]
    for case, trained in zip(cases, on_ranks(2, cases), strict=True):
        right = expected(case, 2)
        if case.correction == "adaptive_error_feedback":  # its oracle adds squares in another order
            torch.testing.assert_close(trained, right, rtol=0, atol=3e-7)
        else:
            assert not differences(trained, right), case


def as_mutants(
    mutants: Sequence[str],
    store: dist.Store,
    heartbeat: Heartbeat,
    send: Callable[[object], None],
    *rest: Any,
) -> None:
    """Like `as_rank`, once for each mutant, with what it replaces."""
    for mutant in mutants:
        with ExitStack() as stack:
            for owner, name, replacement in MUTANTS[mutant]:
                stack.enter_context(patch.object(owner, name, replacement))
            as_rank(dist.PrefixStore(mutant, store), heartbeat, send, *rest)


def _norm_of_the_batch_before(self: LateSums, batch: int) -> Tensor:
    norm = TAKE(self, batch)
    before = getattr(self, "before", norm)
    self.before = norm  # type: ignore[attr-defined]
    return before


def _scheduler_first(self: Training) -> None:
    self.schedule.clip_grad_norm_(self.case.clip_norm)
    self.scheduler.step()
    self.optimizer.step()


TAKE, FACTORS, MODULE = LateSums.take, ErrorFeedback._factors, TwoVersions.module
MUTANTS: dict[str, list[tuple[type, str, Callable[..., Any]]]] = {
    "one version": [(TwoVersions, "module", lambda self, _: MODULE(self, 0))],
    "versions swapped": [(TwoVersions, "module", lambda self, t: MODULE(self, t + 1))],
    "a twin updated in place": [(TwoVersions, "make_room", lambda self, t: self.weights(t + 1))],
    "the norm of another batch": [(LateSums, "take", _norm_of_the_batch_before)],
    "the other sign": [(ErrorFeedback, "_factors", lambda *given: -FACTORS(*given))],
    "a learning rate one off": [(Training, "update", _scheduler_first)],
}
"""By name: what each replaces, and by what."""


BY_AUTOGRAD = [name for name in MUTANTS if "version" in name]
"""Mutants at which autograd raises: weights that a backward needs were changed in place."""


def test_mutants_are_noticed() -> None:
    mutants = [name for name in MUTANTS if name not in BY_AUTOGRAD]
    case = Case(2, error_feedback=1.0)
    right = expected(case, 2)
    trained = on_ranks(2, [case], partial(as_mutants, mutants))
    assert [bool(differences(of, right)) for of in trained] == [True] * len(mutants)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", BY_AUTOGRAD)
def test_autograd_notices_a_mutant(mutant: str) -> None:
    with pytest.raises(GangFailed, match="Failed to run stage backward"):
        on_ranks(2, [Case(2, error_feedback=1.0)], partial(as_mutants, [mutant]))


@pytest.mark.parametrize("num_stages", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_wait_for_each_other_where_nccl_would(num_stages: int) -> None:
    """And end, though every pass loads kernels. Where stages share a weight only the first of each
    kind may: the last stage begins the sum of that weight long before the first stage."""
    drained = Case(num_stages, error_feedback=1.0, drains={4: "drain"})
    always = partial(as_nccl_rank, always=OF_2BW)
    at_first = partial(as_nccl_rank, at_first=OF_2BW)
    assert_all_equal(num_stages, [drained], program=always)
    assert_all_equal(num_stages, [replace(drained, shares="stages")], program=at_first)


SLOW: dict[str, tuple[tuple[int, ...], Callable[[int], list[Case]]]] = {
    "optimizers and numbers of microbatches": (
        (2, 3, 4),
        lambda p: [
            Case(m, name, feedback)
            for m, name, feedback in product(
                (p, 2 * p), ("sgd", "adamw", "torch_muon", "our_muon"), (0.0, 1.0)
            )
        ],
    ),
    "every position of a drain": (
        (2, 3),
        lambda p: [
            *(
                Case(p, drains={t: what}, error_feedback=1.0)
                for t, what in product(range(T), ("drain", "evaluate", "save"))
            ),
            Case(p, drains=dict.fromkeys(range(T), "save"), error_feedback=1.0),
        ],
    ),
    "slack and a synchronous start": (
        (1, 2, 4),
        lambda p: [
            Case(8, error_feedback=1.0, slack=slack, synchronous_start=n)
            for slack, n in product((False, True), (0, 1, 3))
        ],
    ),
    # Both copies stay equal to the last bit, and count once in the norm.
    "stages that share a weight": (
        (2, 3, 4),
        lambda p: [
            Case(p, "adamw", 1.0, shares="stages", drains={3: "save in parts", 5: "drain"}),
            Case(2 * p, "our_muon", 1.0, shares="stages", synchronous_start=2),
            Case(8, correction="taylor", shares="stages", slack=True),
            Case(4, correction="weight_prediction", shares="stages"),
        ],
    ),
    "every optimizer of torch": (
        (2,),
        lambda p: [Case(p, f"torch_{name}", error_feedback=1.0) for name in OF_TORCH],
    ),
}
"""What is tried → numbers of stages, and the cases of each."""


@pytest.mark.slow
@pytest.mark.parametrize(("what", "p"), [(what, p) for what in SLOW for p in SLOW[what][0]])
def test_more_cases_equal_the_equations(what: str, p: int) -> None:
    assert_all_equal(p, SLOW[what][1](p))
