"""The deferred update: a batch's gradient is summed and clipped while its rank computes on."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from trainer.base.flat import wholes
from trainer.executors.gradients import Clip, Slots, slots
from trainer.executors.passes import Pass
from trainer.ranks.groups import Gang
from trainer.schedules.operations import Op
from trainer.stages.stage import Stage
from trainer.tracing.clock import Clock


@dataclass(frozen=True)
class Reduced:
    """The clipped gradients of each stage of the rank; the batch's mean loss and the norm of the
    whole model's gradient before the clip."""

    gradients: list[Sequence[Tensor]]
    loss: float
    norm: float


class Reducer:
    """Sums over the ranks what makes one gradient: replicas, tied weights, norm.

    Each sum needs the result of the one before it, so they run in a thread of their own. The rank
    waits only when it needs the result, and the sums go on while it waits for a message.
    """

    def __init__(
        self,
        gang: Gang,
        stages: dict[int, Stage],
        num_stages: int,
        num_microbatches: int,
        clip: Clip,
        clock: Clock,
    ) -> None:
        self._gang, self._stages = gang, list(stages.values())
        self._slots = _agree_on_slots(gang, stages, num_stages)
        self._divisor, self._clip = num_microbatches * gang.num_replicas, clip
        self._clock = clock
        self._stream = torch.cuda.Stream(gang.device) if gang.device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(1, "reducer", torch.set_num_threads, (1,))

    def launch(self, op: Op, losses: Sequence[Tensor], kind: Pass) -> Future[Reduced]:
        """Starts to reduce the gradients of the batch that `op` completed.

        `losses` has the loss of each microbatch, on the last stage; elsewhere it is empty.
        """
        gradients = [stage.take_gradients() for stage in self._stages]
        loss = torch.stack(list(losses)).mean() if losses else gradients[0][0].new_zeros(())
        if self._stream is not None:
            # The sums must not start before the backward has written the gradients.
            self._stream.wait_stream(torch.cuda.current_stream())
        return self._thread.submit(self._reduce, op, gradients, loss, kind)

    def _reduce(
        self, op: Op, gradients: list[Sequence[Tensor]], loss: Tensor, kind: Pass
    ) -> Reduced:
        with torch.cuda.stream(self._stream), self._clock.span(op, "reduce"):  # None: no stream
            gang = self._gang
            # The loss travels with the gradients: one message fewer per batch.
            loss = loss.to(gradients[0][0].dtype)
            if gang.num_replicas > 1:
                self._sum([*chain.from_iterable(gradients), loss], gang.replicas)
            for of_stage in gradients:
                torch._foreach_div_(wholes(of_stage)[0], self._divisor)
            # Before the correction and the norm, which must see one gradient per tied weight.
            self._sum_tied(gradients)
            if kind.is_corrected:
                for stage, of_stage in zip(self._stages, gradients, strict=True):
                    stage.correct(op.batch, of_stage)
            # One slot per weight of the model: the sum over ranks adds zeros and so rounds nothing,
            # and the norm of the vector is the same number for any cut into stages.
            norms = [s.norms(of_stage) for s, of_stage in zip(self._slots, gradients, strict=True)]
            vector = torch.cat((sum(norms[1:], norms[0]), loss.reshape(1) / gang.num_replicas))
            self._sum([vector], gang.pipeline)
            norm = torch.linalg.vector_norm(vector[:-1])
            if kind.is_clipped:
                for stage, of_stage in zip(self._stages, gradients, strict=True):
                    self._clip(stage.clipped(of_stage), norm)
            # The one wait for the device, in this thread: the rank computes on meanwhile.
            values = torch.stack((vector[-1], norm)).double().tolist()
        return Reduced(gradients, *values)

    def _sum_tied(self, gradients: list[Sequence[Tensor]]) -> None:
        """Gives both copies of each tied weight the sum of their gradients."""
        copies: dict[str, list[Tensor]] = {}
        for stage, of_stage in zip(self._stages, gradients, strict=True):
            columns = zip(stage.versions.names, stage.is_tied, of_stage, strict=True)
            for name, is_tied, gradient in columns:
                if is_tied:
                    copies.setdefault(name, []).append(gradient)
        apart = [same[0] for same in copies.values() if len(same) == 1]
        if apart:
            self._sum(apart, self._gang.tied)
        # Where this rank has both copies, the sum needs no message.
        for first, last in (same for same in copies.values() if len(same) == 2):
            last.copy_(first.add_(last))

    def _sum(self, tensors: Sequence[Tensor], group: Any) -> None:
        """Sums each tensor over the ranks of `group`, in place, in one message."""
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with self._gang.raising_peer_lost():
            self._gang.all_reduce(flat, group).wait()
        parts = flat.split([tensor.numel() for tensor in tensors])
        torch._foreach_copy_(
            list(tensors), [part.view_as(t) for part, t in zip(parts, tensors, strict=True)]
        )


def _agree_on_slots(gang: Gang, stages: dict[int, Stage], num_stages: int) -> list[Slots]:
    """The slots of this rank's stages, which follow from the names of all ranks' weights."""
    mine = {index: stage.slots for index, stage in stages.items()}
    names = {index: names for rank in gang.all_gather(mine) for index, names in rank.items()}
    every = slots([names[index] for index in range(num_stages)])
    return [every[index] for index in stages]
