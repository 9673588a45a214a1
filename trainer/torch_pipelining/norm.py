"""The norm of the whole model's gradient, whose sum over the stages nobody waits for."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor, Replicate

from trainer.base.flat import local
from trainer.executors.gradients import Diverged
from trainer.torch_pipelining.neighbours import new_groups, ranks_of, started


class LateNorm:
    """Sums over the stages begin when a batch's gradient is whole and are read a batch later.

    The norm is made from one vector with one slot per weight of the model, as in trials
    (`executors.gradients`), so that it is the same number for any number of stages.
    """

    def __init__(self, stage: PipelineStage, num_weights: int) -> None:
        [self._group] = new_groups(ranks_of(stage), 1)
        numbers: list[Any] = [None] * stage.num_stages
        dist.all_gather_object(numbers, num_weights, group=self._group)
        self._start, self._size = sum(numbers[: stage.stage_index]), sum(numbers)
        self._device = stage.device
        self._begun: dict[int, tuple[dist.Work, Tensor]] = {}
        self._reduce(torch.zeros(1, device=self._device)).wait()  # NCCL builds the communicator

    def begin(self, batch: int, gradients: Sequence[Tensor | None]) -> None:
        """Starts the sum for this stage's gradients of a batch, one per weight or None."""
        vector = torch.zeros(self._size, device=self._device)
        numbers = [i for i, gradient in enumerate(gradients) if gradient is not None]
        norms = norms_of([gradient for gradient in gradients if gradient is not None])
        vector = vector.to(torch.promote_types(norms.dtype, vector.dtype))
        vector[[self._start + i for i in numbers]] = norms.to(vector.dtype)
        self._begun[batch] = self._reduce(vector), vector

    def _reduce(self, vector: Tensor) -> dist.Work:
        return started(dist.all_reduce(vector, group=self._group, async_op=True))

    def take(self, batch: int) -> Tensor:
        """The norm of the batch's gradient, the same on every rank.

        Raises Diverged, on every rank alike, if it is not finite.
        """
        work, vector = self._begun.pop(batch)
        work.wait()
        norm = torch.linalg.vector_norm(vector)
        if not isfinite(float(norm)):
            raise Diverged(batch)
        return norm


def norms_of(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of each gradient, [gradients]: of a DTensor the whole tensor's norm.

    What replicas of a weight hold counts once. A sharded gradient is summed over its own mesh,
    whose ranks are at the same operation.
    """
    if not gradients:
        return torch.zeros(0)
    whole = [_summed(gradient) for gradient in gradients]
    norms = torch.stack(torch._foreach_norm([local(gradient) for gradient in whole]))
    by_shards: dict[Any, list[int]] = {}
    for i, gradient in enumerate(whole):
        if isinstance(gradient, DTensor):
            by_shards.setdefault((gradient.device_mesh, gradient.placements), []).append(i)
    for (mesh, placements), numbers in by_shards.items():
        squares = norms[numbers].square()
        for dimension, placement in enumerate(placements):
            if not placement.is_replicate():  # FSDP2 over TP has shards that torch calls none
                group = mesh.get_group(dimension)
                started(dist.all_reduce(squares, group=group, async_op=True)).wait()
        norms[numbers] = squares.sqrt()
    return norms


def _summed(gradient: Tensor) -> Tensor:
    """The gradient without partial sums (DTensor)."""
    if not isinstance(gradient, DTensor) or not any(p.is_partial() for p in gradient.placements):
        return gradient
    placements = [Replicate() if p.is_partial() else p for p in gradient.placements]
    return gradient.redistribute(placements=placements)
