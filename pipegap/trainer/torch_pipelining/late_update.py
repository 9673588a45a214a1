"""The update of a batch, from a gradient that is late: the user's own step, then the correction."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pipegap.trainer.base.build import build
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.flat import GatheredWeights, by_device
from pipegap.trainer.base.ranges import MAX_COUNT
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.delayed.arm import (
    STEPS_COPIES,
    Node,
    require_fitting,
    require_no_masters,
)
from pipegap.trainer.executors.gradients import Clip
from pipegap.trainer.stages.in_parts import CorrectionInParts
from pipegap.trainer.stages.update import corrected_update
from pipegap.trainer.torch_pipelining import refusals
from pipegap.trainer.torch_pipelining.sums import LateSums, entries
from pipegap.trainer.torch_pipelining.two_versions import TwoVersions


class LateUpdate:
    """Makes W(t+1) of W(t): moves the gradient of batch t to the newest weights, calls the user's
    `update`, and has what it made corrected, as that of a trial is.
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
        self._coefficient, correction_made = correction.get("coefficient"), self._make([1])
        allowed = "must not look ahead: the module has weights to evaluate while it is drained"
        refusals.require(
            not correction_made.looks_ahead, "correction", type(correction_made).__name__, allowed
        )
        self.versions = TwoVersions(stage.submod, twins, reads_ahead=correction_made.reads_ahead)
        self.sums = LateSums(stage, tied)
        self._gathered = GatheredWeights()
        self._norm: Tensor | None = None  # of the batch whose `update` runs
        self._begun = -1  # the last batch whose norm
        self._has_begun = self._has_looked = False  # with batches; at gradients around an update
        self._has_gradient = False  # that any batch left to a weight
        self.loaded: Mapping[str, Any] | None = None
        """What `state` returned, until a batch needs it: weights may be loaded after it."""

    @cached_property
    def _correction(self) -> CorrectionInParts:
        """Made when it is first needed: until then weights may be loaded, moved or sharded."""
        weights = self.versions.newest
        make = self._make if weights else partial(NoCorrection, MAX_COUNT)
        return CorrectionInParts(make, [1] * len(weights), by_device(weights) or [[]])

    def begin(self, batch: int, version: int, *, is_synchronous: bool) -> None:
        """Before the first forward of a batch, where the newest weights are W(version)."""
        if not self._has_begun:
            self.sums.agree()
            self._has_begun = True
        if version == batch:
            self.prepare(batch, is_synchronous=is_synchronous)
            self._begun = -1  # this batch may have been trained before the state that was loaded
        self.versions.follow(batch, version)

    def prepare(self, batch: int, *, is_synchronous: bool = False) -> None:
        """Begins anew with a batch, after a drain: weights may have been loaded or evaluated.

        At first and if `is_synchronous` the batch computes on the newest weights.
        """
        self._gathered.drop()  # no optimizer steps the whole weights that an evaluation gathered
        if self.loaded is not None:
            self._take_back(batch, self.loaded)
            self.loaded = None
        if not self.versions.newest:
            self.sums.make_equal([*self.versions.whole.parameters()])
        if is_synchronous or not self.versions.newest:
            self.versions.start(batch)

    def complete(self, batch: int, divisor: Tensor | None) -> None:
        """Divides the gradient of a batch, which all its microbatches have added to here."""
        weights = self.versions.weights(batch)
        for weight in weights:
            if weight.grad is not None and weight.grad.is_sparse:
                dense = self._correction.changes_gradients
                weight.grad = weight.grad.to_dense() if dense else weight.grad.coalesce()
        gradients = [entries(weight.grad) for weight in weights if weight.grad is not None]
        if divisor is not None and gradients:
            torch._foreach_div_(gradients, divisor)
        self.sums.begin_tied(weights)

    def begin_norm(self, batch: int) -> None:
        """Starts to add up the norm over the stages, once. The newest weights must be W(batch)."""
        if self._begun == batch:
            return
        self._begun = batch
        self.sums.finish_tied()
        if self._correction.changes_gradients:
            self._correct_gradients(batch)
        self.sums.begin_norm([weight.grad for weight in self.versions.weights(batch)])

    def _correct_gradients(self, batch: int) -> None:
        weights, delays = self.versions.weights(batch), self.versions.delays(batch)
        if any(w.requires_grad and w.grad is None for w in weights):
            self.sums.report(refusals.UNCORRECTED)
        else:  # what is frozen has a delay of 0: the correction leaves its zeros as they are
            gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
            self._correction.gradient_of_some(gradients, self.versions.newest, delays)

    def clip(self, max_norm: float) -> Tensor:
        """Clips the newest weights' gradients in `update`; returns the norm over all stages."""
        norm = self._norm
        if norm is None:
            raise RuntimeError("clip_grad_norm_ belongs into update(), where the gradient is whole")
        every = [weight.grad for weight in self.versions.newest]
        if gradients := [entries(gradient) for gradient in every if gradient is not None]:
            Clip(max_norm)(gradients, norm)
        return norm

    def __call__(self, batch: int, norm: Tensor, update: Callable[[], object]) -> None:
        """Turns the newest weights from W(batch) into W(batch + 1); its gradient has this norm."""
        self._norm = norm
        weights, delays = self.versions.newest, self.versions.delays(batch)
        self.versions.move_gradients(batch)
        self._has_gradient |= any(weight.grad is not None for weight in weights)
        if any(delays) and not self._has_gradient:
            allowed = "must leave gradients to update(): what steps in the backward is never late"
            refusals.require(False, "optimizer", "no weight has a gradient", allowed)
        old_weights = self.versions.make_room(batch)
        step = partial(self._step, update)
        predicted = corrected_update(
            step, self._correction, weights, delays, old_weights=old_weights
        )
        self.versions.show(batch, predicted)

    def _step(self, update: Callable[[], object]) -> list[Optimizer]:
        """The step that the user makes, by any optimizers."""
        with Steps(self.versions.newest, looks=not self._has_looked) as steps:
            update()
        for optimizer in steps.optimizers:
            require_fitting(self._correction, optimizer, "weights", self._coefficient)
        if self._correction.moves_weights and steps.has_looked:
            if steps.are_of_others:
                raise BadInput("error_feedback", self._coefficient, STEPS_COPIES)
            for optimizer in steps.optimizers:
                require_no_masters(optimizer, steps.of(optimizer).values(), self._coefficient)
        self._has_looked |= steps.has_looked
        self._norm = None
        self.versions.forget_gradients()
        return steps.optimizers

    def state(self, batch: int) -> dict[str, Any]:
        """What the next batches compute on and what the correction remembers, by name.

        A schedule that has trained nothing has the same names, since torch.distributed.checkpoint
        loads into the tensors that it finds.
        """
        self.prepare(batch)
        memory = self._correction.state()
        remembered = sorted({name for of in memory for name in of})
        if batch < 2:
            memory = [{**b, **m} for b, m in zip(self._blank_memory(), memory, strict=True)]
        late, ahead_weights = (
            [w.detach() for w in self.versions.weights(batch + i)] for i in (0, 1)
        )
        if not self.versions.reads_ahead:
            ahead_weights = []  # the batch after the next one computes on the newest weights
        parts: dict[str, Sequence[Any]] = {
            "late": late,
            "ahead": ahead_weights,
            "correction": memory,
        }
        tensors_by_name = {
            k: dict(zip(self.versions.names, of, strict=False)) for k, of in parts.items()
        }
        return {**tensors_by_name, "remembered": remembered}

    def _blank_memory(self) -> list[Any]:
        """All that the correction ever remembers, from two updates of zeros with a copy of it."""
        blank, weights = copy.deepcopy(self._correction), self.versions.newest
        for delay in (0, 1):
            zeros, at = ([torch.zeros_like(w) for w in weights] for _ in range(2))
            blank.gradient(zeros, at, [delay] * len(weights))
            blank.apply(at, zeros, [delay] * len(weights))
        return blank.state()

    def _take_back(self, batch: int, state: Mapping[str, Any]) -> None:
        names, memory = self.versions.names, state["correction"]
        # Copies: what torch.distributed.checkpoint loads into may be the versions' own memory.
        late, ahead_weights = (
            [state[k][n].clone() for n in names if state[k]] for k in ("late", "ahead")
        )
        self.versions.restore(batch, late, ahead_weights)
        remembered = state["remembered"]
        self._correction.restore(
            [{k: memory[n][k] for k in remembered if k in memory[n]} for n in names]
        )


class Steps:
    """A context around `update`, which steps weights by the gradients that they have.

    Raises RuntimeError before the step of an optimizer whose weights have lost them, and at the end
    if they are left and no weight of theirs was stepped. An `update` without a step may drop them.
    """

    def __init__(self, weights: Sequence[Tensor], *, looks: bool) -> None:
        """`looks` at the gradients' entries, too, for which the host waits."""
        self.optimizers: list[Optimizer] = []
        """That stepped."""
        self._looks = looks
        self._given = {id(w): w for w in weights if self._has_gradient(w)}
        self._versions = [weight._version for weight in self._given.values()]

    @property
    def has_looked(self) -> bool:
        """Whether there was something to see."""
        return self._looks and bool(self._given)

    @property
    def are_of_others(self) -> bool:
        """Whether no optimizer that stepped has one of the weights."""
        return bool(self.optimizers) and not any(map(self.of, self.optimizers))

    def __enter__(self) -> "Steps":
        note_step = lambda optimizer, *_: self.optimizers.append(optimizer)  # noqa: E731
        self._hooks = (
            register_optimizer_step_pre_hook(lambda optimizer, *_: self._require_kept(optimizer)),
            register_optimizer_step_post_hook(note_step),
        )
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        are_left = any(weight.grad is not None for weight in self._given.values())
        if kind is None and are_left and not self._have_stepped():
            raise RuntimeError(
                "update() made no optimizer step of the weights of the stage: every batch is one "
                "update; for gradients over more of them give the schedule more microbatches"
            )

    def _have_stepped(self) -> bool:
        """What a fused or foreach step changes of a DTensor shows in no version of the weight."""
        versions = [weight._version for weight in self._given.values()]
        return versions != self._versions or any(map(self.of, self.optimizers))

    def of(self, optimizer: Optimizer) -> dict[int, Tensor]:
        """The weights of this optimizer that were given a gradient."""
        every = (id(weight) for group in optimizer.param_groups for weight in group["params"])
        return {key: self._given[key] for key in every if key in self._given}

    def _require_kept(self, optimizer: Optimizer) -> None:
        weights_stepped = self.of(optimizer)
        has_any = any(map(self._has_gradient, weights_stepped.values()))
        is_second = any(
            weights_stepped.keys() & self.of(earlier).keys() for earlier in self.optimizers
        )
        if weights_stepped and not has_any and not is_second:
            raise RuntimeError(
                "update() cleared the gradients before the optimizer's step, which then trains "
                "nothing: call zero_grad after the step, or not at all"
            )

    def _has_gradient(self, weight: Any) -> bool:
        return weight.grad is not None and (not self._looks or bool(entries(weight.grad).any()))
