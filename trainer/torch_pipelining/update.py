"""The update of a batch, from a gradient that is late: the user's own step, then the correction."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from trainer.base.build import build
from trainer.base.ranges import MAX_COUNT
from trainer.delayed.arm import Node
from trainer.delayed.kept_weights import alike
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
        self._make = partial(build, correction, num_updates or MAX_COUNT)
        self.twins = Twins(stage.submod, twins, reads_ahead=self._make([1]).reads_ahead)
        self.sums = LateSums(stage, stage.submod, tied)
        self._norm: Tensor | None = None  # of the batch whose `update` runs
        self._loaded: list[Mapping[str, Any]] = []  # what the next batch needs of a saved state

    @cached_property
    def _correction(self) -> CorrectionInParts:
        """Made when it is first needed: until then weights may be loaded, moved or sharded."""
        weights = self.twins.newest_weights
        return CorrectionInParts(self._make, [1] * len(weights), alike(weights))

    def prepare(self, batch: int, *, is_synchronous: bool = False) -> nn.Module:
        """Returns the module that the batch computes on, at first and if `is_synchronous` with the
        newest weights."""
        self.twins.reshard()
        while self._loaded:
            self._take_back(batch, self._loaded.pop())
        if not self.twins.is_started:
            self.sums.make_equal(self.twins.newest_weights)
        if is_synchronous or not self.twins.is_started:
            self.twins.start(batch)
        return self.twins.module(batch)

    def begin_norm(self, batch: int) -> None:
        """Starts to add up the norm over the stages. The newest weights must be W(batch)."""
        self.sums.finish_tied()
        gradients = [weight.grad for weight in self.twins.weights(batch)]
        with torch.no_grad():
            newest = self.twins.newest_weights
            self._correction.gradient_of_some(gradients, newest, self._delays(batch))
        self.sums.begin_norm(gradients)

    def clip(self, max_norm: float) -> Tensor:
        """Clips the newest weights' gradients in `update`; returns the norm over all stages."""
        norm = self._norm
        if norm is None:
            raise RuntimeError("clip_grad_norm_ belongs into update(), where the gradient is whole")
        gradients = [weight.grad for weight in self.twins.newest_weights]
        Clip(max_norm)([g for g in gradients if g is not None], lambda: norm)
        return norm

    def await_norm(self, batch: int) -> None:
        """Raises, on every rank alike, if the update must not be made (`LateSums.take`)."""
        self._norm = self.sums.take(batch)

    def __call__(self, batch: int, update: Callable[[], object]) -> None:
        """Turns the newest weights from W(batch) into W(batch + 1)."""
        weights, correction = self.twins.newest_weights, self._correction
        for mine, theirs in zip(weights, self.twins.weights(batch), strict=True):
            mine.grad = None if theirs.grad is None else theirs.grad.to(mine.dtype)
            theirs.grad = None
        before = self.twins.make_room(batch)
        if correction.needs_update and not before:
            before = [weight.detach().clone() for weight in weights]
        versions = [weight._version for weight in weights]
        # What a fused or foreach step changes of a DTensor shows in no version of the weight.
        steps: list[Optimizer] = []
        hook = register_optimizer_step_post_hook(lambda optimizer, *_: steps.append(optimizer))
        try:
            update()
        finally:
            hook.remove()
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
        return [self.twins.delay(batch)] * len(self.twins.newest_weights)

    @property
    def _names(self) -> list[str]:
        return [name for name, _ in self.twins.newest.named_parameters()]

    def state(self, batch: int) -> dict[str, Any]:
        """What the next batches compute on and what the correction remembers, by name.

        A schedule that has trained nothing has the same names, since torch.distributed.checkpoint
        loads into the tensors that it finds.
        """
        self.prepare(batch)
        memory = self._correction.state()
        if batch < 2:
            memory = [{**b, **m} for b, m in zip(self._blank_memory(), memory, strict=True)]
        late, ahead = ([w.detach() for w in self.twins.weights(batch + i)] for i in (0, 1))
        return {
            "late": dict(zip(self._names, late, strict=True)),
            # Else the batch after the next one computes on the newest weights.
            "ahead": dict(zip(self._names, ahead, strict=True)) if self.twins.reads_ahead else {},
            "correction": dict(zip(self._names, memory, strict=True)),
            "remembered": sorted({name for of in self._correction.state() for name in of}),
        }

    def _blank_memory(self) -> list[Any]:
        """All that the correction ever remembers, from two updates of zeros with a copy of it."""
        blank, weights = copy.deepcopy(self._correction), self.twins.newest_weights
        for delay in (0, 1):
            zeros, at = ([torch.zeros_like(w) for w in weights] for _ in range(2))
            blank.gradient(zeros, at, [delay] * len(weights))
            blank.apply(at, zeros, [delay] * len(weights))
        return blank.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` returned, when a batch needs it: the newest weights may be loaded
        until then."""
        self._loaded = [state]

    def _take_back(self, batch: int, state: Mapping[str, Any]) -> None:
        # Copies: what torch.distributed.checkpoint loads into may be the twins' own memory.
        late, ahead = (
            [state[of][n].clone() for n in self._names if state[of]] for of in ("late", "ahead")
        )
        self.twins.restore(batch, late, ahead)
        memory, remembered = state["correction"], state["remembered"]
        self._correction.restore(
            [{k: memory[n][k] for k in remembered if k in memory[n]} for n in self._names]
        )
