"""Mutants of `Schedule2BW` and of a loop around it, which the equations must notice."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch import Tensor

from tests.support.torch_pipeline import Training, as_rank
from trainer.corrections.error_feedback import ErrorFeedback
from trainer.ranks.groups import Heartbeat
from trainer.torch_pipelining.sums import LateSums
from trainer.torch_pipelining.twins import Twins


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


TAKE, FACTORS, MODULE = LateSums.take, ErrorFeedback._factors, Twins.module
MUTANTS: dict[str, list[tuple[type, str, Callable[..., Any]]]] = {
    "one version": [(Twins, "module", lambda self, _: MODULE(self, 0))],
    "versions swapped": [(Twins, "module", lambda self, t: MODULE(self, t + 1))],
    "a twin updated in place": [(Twins, "make_room", lambda self, t: self.weights(t + 1))],
    "the norm of another batch": [(LateSums, "take", _norm_of_the_batch_before)],
    "the other sign": [(ErrorFeedback, "_factors", lambda *given: -FACTORS(*given))],
    "a learning rate one off": [(Training, "update", _scheduler_first)],
}
"""By name: what each replaces, and by what."""
