"""Mutants of `Schedule2BW` and of a loop around it, which the equations must notice."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from torch import Tensor

from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.torch_pipelining.sums import LateSums
from pipegap.trainer.torch_pipelining.two_versions import TwoVersions
from tests.support.torch_pipeline import Training, as_rank


def as_mutant(mutant: str, *rest: Any) -> None:
    """Like `as_rank`, with one thing replaced."""
    with ExitStack() as stack:
        for owner, name, replacement in MUTANTS[mutant]:
            stack.enter_context(patch.object(owner, name, replacement))
        as_rank(*rest)


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
