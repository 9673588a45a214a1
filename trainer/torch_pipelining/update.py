"""The update of a batch, from a gradient that is late: the user's own step, then the correction."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from trainer.base.build import build
from trainer.base.flat import local
from trainer.base.ranges import MAX_COUNT
from trainer.corrections.none import NoCorrection, State
from trainer.delayed.arm import Node
from trainer.delayed.kept_weights import alike, copy_into
from trainer.executors.gradients import Clip
from trainer.optimizers.hyperball import on_spheres
from trainer.stages.in_parts import CorrectionInParts
from trainer.torch_pipelining import refusals
from trainer.torch_pipelining.sums import LateSums
from trainer.torch_pipelining.twins import Twins


class LateUpdate:
    """Makes W(t+1) of W(t): moves the gradient of batch t to the newest weights, calls the user's
    `update`, and corrects what it made, as a trial does (`stages.update.corrected_update`).
    """

    def __init__(
        self,
        stage: PipelineStage,
        twins: Sequence[nn.Module] | None,
        tied: Sequence[str],
        correction: Node,
        num_updates: int | None,
    ) -> None:
        self._newest, self._node = stage.submod, correction
        self._num_updates = num_updates or MAX_COUNT
        self.twins = Twins(stage.submod, twins, reads_ahead=self._make([1]).reads_ahead)
        self.sums = LateSums(stage, stage.submod, tied)
        self._norm: Tensor | None = None  # of the batch whose `update` runs

    def _make(self, lags: Sequence[int]) -> NoCorrection:
        made: NoCorrection = build(self._node, self._num_updates, lags)
        return made

    @property
    def weights(self) -> list[nn.Parameter]:
        """The newest weights."""
        return self.twins.newest_weights

    @cached_property
    def _correction(self) -> CorrectionInParts:
        """Made when it is first needed: until then weights may be loaded, moved or sharded."""
        return self._new_correction()

    def _new_correction(self) -> CorrectionInParts:
        weights = self.weights
        whole, lags = [None] * len(weights), [1] * len(weights)
        return CorrectionInParts(self._make, lags, alike(weights), whole)

    def prepare(self, batch: int, *, is_synchronous: bool) -> nn.Module:
        """Returns the module that the batch computes on, at first and if `is_synchronous` with the
        newest weights."""
        self.twins.reshard()
        if is_synchronous or not self.twins.is_started:
            self._start(batch)
        return self.twins.module(batch)

    def _start(self, batch: int) -> None:
        if not self.twins.is_started:
            self.sums.make_equal(self.weights)
        self.twins.start(batch)

    def begin_norm(self, batch: int, *, is_scaled: bool) -> None:
        """Starts to add up the norm over the stages. The newest weights must be W(batch)."""
        self.sums.finish_tied()
        gradients = [weight.grad for weight in self.twins.weights(batch)]
        if self._correction.changes_gradients:
            present = [gradient for gradient in gradients if gradient is not None]
            if len(present) < len(gradients):
                raise RuntimeError("a correction of gradients needs one of every weight")
            with torch.no_grad():
                self._correction.gradient(present, self.weights, self._delays(batch))
        self.sums.begin_norm(batch, gradients, is_scaled=is_scaled)

    def await_norm(self, batch: int) -> None:
        """Raises, on every rank alike, if the update must not be made (`LateSums.take`)."""
        self._norm = self.sums.take(batch)

    def clip(self, max_norm: float) -> Tensor:
        """Clips the newest weights' gradients in `update`; returns the norm over all stages."""
        if self._norm is None:
            raise RuntimeError("clip_grad_norm_ belongs into update(), where the gradient is whole")
        Clip(max_norm)([local(w.grad) for w in self.weights if w.grad is not None], self._norm)
        return self._norm

    def __call__(self, batch: int, update: Callable[[], object]) -> None:
        """Turns the newest weights from W(batch) into W(batch + 1)."""
        weights, correction = self.weights, self._correction
        for mine, theirs in zip(weights, self.twins.weights(batch), strict=True):
            mine.grad = None if theirs.grad is None else theirs.grad.to(mine.dtype)
            theirs.grad = None
        before = self.twins.make_room(batch)
        if correction.needs_update and not before:
            before = [weight.detach().clone() for weight in weights]
        versions = [weight._version for weight in weights]
        with _steps() as steps:
            update()
        if not steps:
            refusals.require_stepped(weights, versions)
        with torch.no_grad():
            change: list[Tensor] = []
            if correction.needs_update:
                change = [old - new for old, new in zip(before, weights, strict=True)]
            with on_spheres(steps):
                correction.apply(weights, change, self._delays(batch))
            self.twins.show(batch, correction.ahead(weights, change))
        for weight in weights:
            weight.grad = None
        self._norm = None

    def _delays(self, batch: int) -> list[int]:
        return [self.twins.delay(batch)] * len(self.weights)

    def state(self, batch: int) -> dict[str, Any]:
        """What the next batches compute on and what the correction remembers, by name.

        A schedule that has trained nothing has the same names, since torch.distributed.checkpoint
        loads into the tensors that it finds.
        """
        if not self.twins.is_started:
            self._start(batch)
        memory = self._correction.state()
        blank = self._blank_memory() if batch < 2 else memory
        columns = [{**empty, **column} for empty, column in zip(blank, memory, strict=True)]
        return {
            "delay": self.twins.delay(batch),
            "late": self._by_name([w.detach() for w in self.twins.weights(batch)]),
            # Else the batch after the next one computes on the newest weights.
            "ahead": self._by_name([w.detach() for w in self.twins.weights(batch + 1)])
            if self.twins.reads_ahead
            else {},
            "correction": self._by_name(columns),
            "remembered": sorted({name for column in memory for name in column}),
        }

    def _by_name(self, values: Sequence[Any]) -> dict[str, Any]:
        """A value of each weight by the weight's name."""
        names = (name for name, _ in self._newest.named_parameters())
        return dict(zip(names, values, strict=True))

    def _blank_memory(self) -> list[State]:
        """All that the correction ever remembers, from two updates of zeros with a copy of it."""
        copy = self._new_correction()
        for delay in (0, 1):
            zeros, weights = ([torch.zeros_like(w) for w in self.weights] for _ in range(2))
            copy.gradient(zeros, weights, [delay] * len(weights))
            copy.apply(weights, zeros, [delay] * len(weights))
        return copy.state()

    def restore(self, batch: int, state: Mapping[str, Any]) -> None:
        """Takes back what `state` returned; the newest weights are W(batch)."""
        names = [name for name, _ in self._newest.named_parameters()]
        # Copies: what torch.distributed.checkpoint loads into may be the twins' own memory.
        late, ahead = (
            [state[of][name].clone() for name in names if state[of]] for of in ("late", "ahead")
        )
        self.twins.start(batch, int(state["delay"]))
        copy_into(self.twins.weights(batch), late)
        if ahead:
            copy_into(self.twins.weights(batch + 1), ahead)
        memory, remembered = state["correction"], state["remembered"]
        self._correction.restore(
            [{k: memory[name][k] for k in remembered if k in memory[name]} for name in names]
        )


@contextmanager
def _steps() -> Iterator[list[Optimizer]]:
    """Yields a list that gets every step of an optimizer of torch.

    What a fused or foreach step changes of a DTensor shows in no version of the weight.
    """
    steps: list[Optimizer] = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: steps.append(optimizer))
    try:
        yield steps
    finally:
        hook.remove()
