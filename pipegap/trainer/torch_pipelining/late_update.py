"""The update of a batch from a late gradient: its sums over ranks, the user's own step, then the
correction.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from math import ceil, isfinite
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.utils import get_total_norm
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pipegap.trainer.base.build import build
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.flat import GatheredWeights, by_device, local
from pipegap.trainer.base.ranges import MAX_COUNT
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.delayed.arm import (
    STEPS_COPIES,
    Node,
    require_fitting,
    require_no_masters,
)
from pipegap.trainer.executors.executor import Clip, Diverged
from pipegap.trainer.stages.in_parts import CorrectionInParts, MakeCorrection
from pipegap.trainer.stages.update import corrected_update
from pipegap.trainer.torch_pipelining import refusals
from pipegap.trainer.torch_pipelining.passes import new_group, of_every_rank, ranks_of
from pipegap.trainer.torch_pipelining.two_versions import TwoVersions

# The sums over ranks that make one gradient of a batch, for which nobody waits.

NUM_FLAWS = len(refusals.FLAWS)


class NormVector(NamedTuple):
    """The vector from which the norm of the model is made: a stage's slots, and zeros elsewhere.

    `tied` has the numbers of those weights of the stage whose copies another stage has,
    `with_slot` of those that have a slot: a tied weight has one on the first stage alone.
    `zeros_before` stand for the slots of the stages before this one, `zeros_after` for those of the
    stages after it and for the flaws.
    """

    tied: list[int]
    with_slot: list[int]
    zeros_before: Tensor
    zeros_after: Tensor
    zero: Tensor


def agreed(stage: PipelineStage, names: Sequence[str]) -> NormVector:
    """Tells all ranks how many weights each has, and of which dtypes; every rank makes the call.

    Raises BadInput, on all ranks alike, unless the first and the last stage name tied weights of
    equal shapes, in one order.
    """
    weights_by_name = dict(stage.submod.named_parameters())
    tied = [[*weights_by_name].index(name) for name in names if name in weights_by_name]
    slots_counted = [i for i in range(len(weights_by_name)) if stage.is_first or i not in tied]
    shapes = [weights_by_name[name].shape if name in weights_by_name else None for name in names]
    is_wide = any(w.dtype in (torch.float64, torch.complex128) for w in weights_by_name.values())
    facts = len(slots_counted), shapes, is_wide
    numbers, of_stages, are_wide = zip(*of_every_rank(facts, stage.group), strict=True)
    are_known = all(shape is not None for of_stage in of_stages for shape in of_stage)
    if not are_known or any(of_stages[1:-1]) or of_stages[0] != of_stages[-1]:
        allowed = "must name weights of equal shapes on the first and on the last stage alone"
        raise BadInput("tied", [*names], allowed)
    dtype = torch.float64 if any(are_wide) else torch.float32  # one on all ranks, or none can sum
    zero = torch.zeros(1, dtype=dtype, device=stage.device)
    zeros_before = zero.new_zeros(sum(numbers[: stage.stage_index]))
    zeros_after = zero.new_zeros(sum(numbers[stage.stage_index + 1 :]) + NUM_FLAWS)
    return NormVector(tied, slots_counted, zeros_before, zeros_after, zero)


class LateSums:
    """Sums begin when a stage's gradient of a batch is whole and are read a batch later.

    Both copies of a weight that the first and the last stage share by value, as an embedding and a
    head, get the sum of their gradients; `tied` names them on each. Then the norm of the model is
    made from one vector with one slot per weight, as in trials (`executors.executor`), so that it
    is the same number for any number of stages.

    All ranks of the pipeline make it, and the groups of its sums, which are used once: NCCL builds
    a communicator at its first use. Raises BadInput as `agreed` does.
    """

    def __init__(self, stage: PipelineStage, tied: Sequence[str]) -> None:
        self._stage, self._names, self._slots = stage, tied, agreed(stage, tied)
        ranks = ranks_of(stage)
        self._group = new_group(stage, ranks)
        self._ends = new_group(stage, sorted({ranks[0], ranks[-1]}))
        dist.all_reduce(self._slots.zero, group=self._group)
        self._of_tied: list[Any] = []
        self._flaws: set[int] = set()
        self.unscaled = refusals.unscaled(partial(self.report, refusals.SCALED))

    def agree(self) -> None:
        """`agreed`, again, when the weights that train are known."""
        self._slots = agreed(self._stage, self._names)

    def report(self, flaw: int) -> None:
        """This rank found one of `refusals.FLAWS`: the next sum tells the others."""
        self._flaws.add(flaw)

    def make_equal(self, weights: Sequence[Tensor]) -> None:
        """Gives the last stage's copies of tied weights the values of the first stage's."""
        first = ranks_of(self._stage)[0]
        for i in self._slots.tied:
            dist.broadcast(local(weights[i].detach()), first, group=self._ends)

    def begin_tied(self, weights: Sequence[Tensor]) -> None:
        """Starts to add up the gradients of tied weights."""
        for i in self._slots.tied:
            gradient = weights[i].grad
            if gradient is None:
                self.report(refusals.UNTIED)
                gradient = torch.zeros_like(weights[i])
            weights[i].grad = gradient = gradient.to_dense()
            self._of_tied.append(dist.all_reduce(local(gradient), group=self._ends, async_op=True))

    def finish_tied(self) -> None:
        """Waits until the gradients of tied weights are added up."""
        while self._of_tied:
            self._of_tied.pop(0).wait()

    def begin_norm(self, every: Sequence[Tensor | None]) -> None:
        """Starts the sum for this stage's gradients of a batch, one per weight or None."""
        _, slots_counted, zeros_before, zeros_after, zero = self._slots
        norms = norms_of([zero if (g := every[i]) is None else g for i in slots_counted])
        norms_here = [torch.stack([norm.to(zero.dtype) for norm in norms])] if norms else []
        norms_here += [zero] * (len(slots_counted) - len(norms))  # DTensors share a norm
        self._norms = torch.cat([zeros_before, *norms_here, zeros_after])
        # NaN in all slots makes every rank's norm NaN; the flaw's own entry says which it is.
        for flaw in self._flaws:
            self._norms[flaw - NUM_FLAWS] = self._norms[:-NUM_FLAWS] = torch.nan
        self._of_norm: Any = dist.all_reduce(self._norms, group=self._group, async_op=True)

    def take(self, batch: int) -> Tensor:
        """The norm of the batch's gradient, the same on every rank.

        Raises on every rank alike: Diverged if it is not finite, and what one of them had to
        `report`.
        """
        self._of_norm.wait()
        norm = torch.linalg.vector_norm(self._norms[:-NUM_FLAWS])
        if not isfinite(norm):
            for flaw, error in zip(self._norms[-NUM_FLAWS:], refusals.FLAWS, strict=True):
                if flaw.isnan():
                    raise error()
            raise Diverged(batch)
        return norm


def way_back(num_stages: int) -> int:
    """How many forwards the last stage begins while a gradient of its own goes to the first stage.

    There it is after `num_stages` − 1 backwards, of twice the time of a forward each.
    """
    return ceil(2 * (num_stages - 1) / 3)  # it begins one every 3 times of a forward: F, B


def norms_of(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return norms whose norm is that of all gradients: one for each plain tensor, and one for all
    DTensors that lie alike, of whole tensors: what replicas hold counts once.

    The ranks of a DTensor's mesh are at the same operation.
    """
    plain, by_mesh = [], defaultdict(list)
    for gradient in gradients:
        if isinstance(gradient, DTensor):
            whole = _summed(gradient)
            by_mesh[whole.device_mesh, whole.placements].append(whole)
        else:
            plain.append(entries(gradient))
    norms = [*torch._foreach_norm(plain)] if plain else []
    totals: list[Any] = [get_total_norm(tensors) for tensors in by_mesh.values()]
    return norms + [total.full_tensor() for total in totals]


def entries(gradient: Tensor) -> Tensor:
    """The entries of a gradient that this rank has, in its memory: of a sparse one if coalesced."""
    return gradient.coalesce().values() if gradient.is_sparse else local(gradient)


def _summed(gradient: DTensor) -> DTensor:
    """The gradient without partial sums."""
    if not any(placement.is_partial() for placement in gradient.placements):
        return gradient
    placements = [Replicate() if p.is_partial() else p for p in gradient.placements]
    return gradient.redistribute(placements=placements)


# The update of a batch, from a gradient that is late: the user's own step, then the correction.


def correction_of(make: MakeCorrection, weights: Sequence[Tensor]) -> CorrectionInParts:
    """A correction of weights whose gradients are at most one update late."""
    make = make if weights else partial(NoCorrection, MAX_COUNT)
    return CorrectionInParts(make, [1] * len(weights), by_device(weights) or [[]])


def blank_memory(correction: NoCorrection, weights: Sequence[Tensor]) -> list[Any]:
    """All that a correction of these weights ever remembers, from two updates of zeros with it."""
    # A second update, with a delay: what a correction remembers may differ from the first.
    for delay in (0, 1):
        zeros, at = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
        correction.gradient(zeros, at, [delay] * len(weights))
        correction.apply(at, zeros, [delay] * len(weights))
    return correction.state()


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
        # One for a single weight, to see what the correction does before the weights have shapes.
        self._coefficient, correction_made = correction.get("coefficient"), self._make([1])
        name = type(correction_made).__name__
        refusals.require(not correction_made.looks_ahead, "correction", name, refusals.LOOKS_AHEAD)
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
        return correction_of(self._make, self.versions.newest)

    def begin(self, batch: int, version: int, *, is_synchronous: bool) -> None:
        """Before the first forward of a batch, where the newest weights are W(version)."""
        if not self._has_begun:
            self.sums.agree()
            self._has_begun = True
        if version == batch:  # the pipeline is drained
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
        self._norm = None  # `clip` raises outside of `update`
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
            blank = blank_memory(copy.deepcopy(self._correction), self.versions.newest)
            memory = [{**b, **m} for b, m in zip(blank, memory, strict=True)]
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

    Raises RuntimeError before the step of an optimizer whose weights have lost their gradients, and
    at the end if gradients are left and no weight that had one was stepped. An `update` that makes
    no step may drop the gradients.
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
        # A step in place by plain operations needs no Optimizer, and raises the versions.
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
