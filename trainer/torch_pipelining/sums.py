"""The sums over ranks that make one gradient of a batch, for which nobody waits."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor, Replicate

from trainer.base.errors import BadInput
from trainer.base.flat import local
from trainer.executors.gradients import Diverged
from trainer.torch_pipelining.messages import new_groups, ranks_of, started


class LateSums:
    """Sums begin when a stage's gradient of a batch is whole and are read a batch later.

    Both copies of a weight that the first and the last stage share by value, as an embedding and a
    head, get the sum of their gradients; `tied` names them on each. Then the norm of the model is
    made from one vector with one slot per weight, as in trials (`executors.gradients`), so that it
    is the same number for any number of stages. A tied weight counts on the first stage.

    Raises BadInput, on all ranks alike, unless both stages name weights of equal shapes, in one
    order.
    """

    def __init__(self, stage: PipelineStage, module: nn.Module, tied: Sequence[str]) -> None:
        named = dict(module.named_parameters())
        self._tied = [list(named).index(name) for name in tied if name in named]
        copies = [] if stage.is_first else self._tied
        self._counted = [i for i in range(len(named)) if i not in copies]
        every: list[Any] = [None] * stage.num_stages
        mine = len(self._counted), [getattr(named.get(name), "shape", name) for name in tied]
        dist.all_gather_object(every, mine, group=stage.group)
        numbers, shapes = zip(*every, strict=True)
        are_known = not any(isinstance(shape, str) for of_stage in shapes for shape in of_stage)
        if not are_known or any(shapes[1:-1]) or shapes[0] != shapes[-1]:
            allowed = "must name weights of equal shapes on the first and on the last stage alone"
            raise BadInput("tied", list(tied), allowed)
        self._start, self._size = sum(numbers[: stage.stage_index]), sum(numbers)
        ranks, self._device = ranks_of(stage), stage.device
        [self._group] = new_groups(ranks, 1)
        [self._ends] = new_groups(sorted({ranks[0], ranks[-1]}), 1)
        self._first = ranks[0]
        self._of_tied: list[dist.Work] = []
        self._of_norm: dict[int, tuple[dist.Work, Tensor]] = {}
        # NCCL builds a communicator at its first use.
        _begun(torch.zeros(1, device=self._device), self._group).wait()

    def make_equal(self, weights: Sequence[Tensor]) -> None:
        """Gives the last stage's copies of tied weights the values of the first stage's."""
        for i in self._tied:
            dist.broadcast(local(weights[i].detach()), self._first, group=self._ends)

    def begin_tied(self, weights: Sequence[Tensor]) -> None:
        """Starts to add up the gradients of tied weights. Raises RuntimeError if there is none."""
        for i in self._tied:
            gradient = weights[i].grad
            if gradient is None:
                raise RuntimeError("a tied weight got no gradient on this stage")
            self._of_tied.append(_begun(local(gradient), self._ends))

    def finish_tied(self) -> None:
        """Waits until the gradients of tied weights are added up."""
        while self._of_tied:
            self._of_tied.pop(0).wait()

    def begin_norm(self, batch: int, every: Sequence[Tensor | None], *, is_scaled: bool) -> None:
        """Starts the sum for this stage's gradients of a batch, one per weight or None.

        `is_scaled` says that a GradScaler scaled a loss, which this rank alone may know.
        """
        slots = {self._start + n: every[i] for n, i in enumerate(self._counted)}
        gradients = {slot: gradient for slot, gradient in slots.items() if gradient is not None}
        norms = norms_of([*gradients.values()])
        dtype = torch.promote_types(norms.dtype, torch.float32)
        vector = torch.zeros(self._size + 1, dtype=dtype, device=self._device)
        vector[[*gradients]] = norms.to(dtype)
        vector[-1] = is_scaled
        self._of_norm[batch] = _begun(vector, self._group), vector

    def take(self, batch: int) -> Tensor:
        """The norm of the batch's gradient, the same on every rank.

        Raises on every rank alike: Diverged if it is not finite, BadInput for a scaled loss.
        """
        work, vector = self._of_norm.pop(batch)
        work.wait()
        norm = torch.linalg.vector_norm(vector[:-1])
        number, is_scaled = torch.stack((norm, vector[-1])).tolist()
        if is_scaled:
            allowed = "must not scale: the clip and the update come a batch later; use bf16"
            raise BadInput("loss_fn", "GradScaler.scale", f"{allowed} without it")
        if not isfinite(number):
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
                _begun(squares, mesh.get_group(dimension)).wait()
        norms[numbers] = squares.sqrt()
    return norms


def _begun(tensor: Tensor, group: Any) -> dist.Work:
    return started(dist.all_reduce(tensor, group=group, async_op=True))


def _summed(gradient: Tensor) -> Tensor:
    """The gradient without partial sums (DTensor)."""
    if not isinstance(gradient, DTensor) or not any(p.is_partial() for p in gradient.placements):
        return gradient
    placements = [Replicate() if p.is_partial() else p for p in gradient.placements]
    return gradient.redistribute(placements=placements)
