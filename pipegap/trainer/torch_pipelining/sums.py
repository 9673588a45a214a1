"""The sums over ranks that make one gradient of a batch, for which nobody waits."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from math import ceil, isfinite
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.utils import get_total_norm

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.flat import local
from pipegap.trainer.executors.gradients import Diverged
from pipegap.trainer.torch_pipelining import refusals
from pipegap.trainer.torch_pipelining.passes import new_group, of_every_rank, ranks_of

NUM_FLAWS = len(refusals.FLAWS)


class NormVector(NamedTuple):
    """The vector from which the norm of the model is made: a stage's slots, and zeros for others'.

    `tied` and `counted` are numbers of weights of the stage: those whose copies another stage has,
    and those with a slot, since a tied weight counts on the first stage. `before` are the slots of
    the stages before this one, `after` those of the stages after it and of flaws.
    """

    tied: list[int]
    counted: list[int]
    before: Tensor
    after: Tensor
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
    dtype = torch.float64 if any(are_wide) else torch.float32
    zero = torch.zeros(1, dtype=dtype, device=stage.device)
    zeros_before = zero.new_zeros(sum(numbers[: stage.stage_index]))
    zeros_after = zero.new_zeros(sum(numbers[stage.stage_index + 1 :]) + NUM_FLAWS)
    return NormVector(tied, slots_counted, zeros_before, zeros_after, zero)


class LateSums:
    """Sums begin when a stage's gradient of a batch is whole and are read a batch later.

    Both copies of a weight that the first and the last stage share by value, as an embedding and a
    head, get the sum of their gradients; `tied` names them on each. Then the norm of the model is
    made from one vector with one slot per weight, as in trials (`executors.gradients`), so that it
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
    return ceil(2 * (num_stages - 1) / 3)


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
