"""The deferred update: a batch's gradient is summed and clipped while its rank computes on."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import ceil, isfinite
from typing import Any

import torch
from torch import Tensor

from pipegap.trainer.executors.channel import on_stream, own_stream
from pipegap.trainer.executors.gradients import Clip, Diverged, Slots, Update, slots
from pipegap.trainer.ranks.groups import Gang
from pipegap.trainer.schedules.operations import Op
from pipegap.trainer.stages.stage import Stage
from pipegap.trainer.tracing.trace import Clock


class Totals:
    """What a batch's update is recorded with, by one sum over the ranks of a pipeline.

    `vector` has this rank's norms, by slot, and its share of the loss. The sum is on its way when
    the object is made. It adds zeros and so rounds nothing: one rank has each slot's norm.
    """

    def __init__(self, gang: Gang, batch: int, vector: Tensor) -> None:
        self.batch, self._gang, self._vector = batch, gang, vector
        self._work = gang.all_reduce(vector, gang.pipeline)

    @cached_property
    def norm(self) -> Tensor:
        """Norm of the whole model's gradient before the clip. Waits for the sum."""
        with self._gang.raising_peer_lost():
            self._work.wait()
        return torch.linalg.vector_norm(self._vector[:-1])

    @cached_property
    def loss_and_norm(self) -> tuple[float, float]:
        """The batch's mean loss and the norm. Raises Diverged unless both are finite."""
        loss, norm = torch.stack((self._vector[-1], self.norm)).double().tolist()
        if not (isfinite(loss) and isfinite(norm)):
            raise Diverged(self.batch)
        return loss, norm


@dataclass(frozen=True)
class Reduced:
    """The clipped gradients of each stage of the rank, and the totals of the batch."""

    gradients: list[Sequence[Tensor]]
    totals: Totals


class Reducer:
    """Sums over the ranks what makes one gradient: replicas, tied weights, norm.

    Each sum needs the result of the one before it, so they run in a thread of their own. The rank
    waits only when it needs the result, and the sums go on while it waits for a message. With a
    clip by stage no update needs the batch's totals: a rank goes on without them, and reports an
    update so many updates later that every rank must have added to its totals by then.
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
        self._stream = own_stream(gang.device)
        self._thread = ThreadPoolExecutor(1, "reducer", torch.set_num_threads, (1,))
        self._complete: deque[tuple[Op, Sequence[Tensor], bool]] = deque()
        self._pending: Future[Reduced] | None = None
        self._unreported: deque[tuple[Totals, float]] = deque()
        batches_in_flight = ceil(gang.num_ranks / num_microbatches)
        self._most_unreported = batches_in_flight if clip.by_stage else 0

    def clear(self) -> None:
        """Forgets what a run that diverged left."""
        self._complete.clear()
        self._pending = None
        self._unreported.clear()

    def add(self, op: Op, losses: Sequence[Tensor], is_corrected: bool) -> None:
        """Reduces the gradients of the batch that `op` completed, after those of earlier ones.

        `losses` has the loss of each microbatch, on the last stage; elsewhere it is empty. Unless
        the batch `is_corrected`, no correction changes its gradients.
        """
        self._complete.append((op, losses, is_corrected))
        self._launch()

    def next(self) -> Reduced:
        """Waits for what the next update needs. Raises Diverged."""
        assert self._pending is not None
        return self._pending.result()

    def applied(self, lr: float) -> Update | None:
        """Notes that every stage here applied the update that was next, with that learning rate.

        Returns the update that can be reported now, if there is one. Raises Diverged.
        """
        self._unreported.append((self.next().totals, lr))
        done = self._report() if len(self._unreported) > self._most_unreported else None
        self._pending = None
        self._launch()
        return done

    def unreported(self) -> Iterator[Update]:
        """The updates that were applied and not reported. Raises Diverged."""
        while self._unreported:
            yield self._report()

    def _report(self) -> Update:
        totals, lr = self._unreported.popleft()
        self._gang.heartbeat.beat(waiting=True)
        loss, norm = totals.loss_and_norm
        self._gang.heartbeat.beat()
        return Update(totals.batch, loss, norm, lr)

    def _launch(self) -> None:
        """Starts to reduce the next complete batch, unless one is pending.

        Only one is at a time: a correction of the next gradient may need the weights that the
        pending update makes.
        """
        if self._pending is not None or not self._complete:
            return
        op, losses, is_corrected = self._complete.popleft()
        gradients = [stage.take_gradients() for stage in self._stages]
        loss = torch.stack(list(losses)).mean() if losses else gradients[0][0].new_zeros(())
        if self._stream is not None:
            # The sums must not start before the backward has written the gradients.
            self._stream.wait_stream(torch.cuda.current_stream())
        self._pending = self._thread.submit(self._reduce, op, gradients, loss, is_corrected)

    def _reduce(
        self, op: Op, gradients: list[Sequence[Tensor]], loss: Tensor, is_corrected: bool
    ) -> Reduced:
        with on_stream(self._stream), self._clock.span(op, "reduce"):
            gang = self._gang
            # The loss travels with the gradients: one message fewer per batch.
            loss = loss.to(gradients[0][0].dtype)
            if gang.num_replicas > 1:
                self._sum([*chain.from_iterable(gradients), loss], gang.replicas)
            if self._divisor > 1:  # else the sum is the mean
                for of_stage in gradients:
                    torch._foreach_div_(list(of_stage), self._divisor)
            # Before the correction and the norm, which must see one gradient per tied weight.
            self._sum_tied(gradients)
            if is_corrected:
                for stage, of_stage in zip(self._stages, gradients, strict=True):
                    stage.correct(op.batch, of_stage)
            norms = [s.norms(of_stage) for s, of_stage in zip(self._slots, gradients, strict=True)]
            # The norm of the vector is the same number for any cut into stages.
            vector = torch.cat((sum(norms[1:], norms[0]), loss.reshape(1) / gang.num_replicas))
            is_finite = self._is_finite(vector, gradients) if self._clip.by_stage else None
            totals = Totals(gang, op.batch, vector)
            for stage, of_stage in zip(self._stages, gradients, strict=True):
                self._clip.stage(stage, of_stage, lambda: totals.norm)
            # The one wait for the device, in this thread: the rank computes on meanwhile.
            if is_finite is None:
                _ = totals.loss_and_norm  # or Diverged
            elif not is_finite.item():
                # The totals will tell every rank, some batches later. Nothing may step by it.
                for of_stage in gradients:
                    torch._foreach_zero_(list(of_stage))
                if self._stream is not None:
                    self._stream.synchronize()
        return Reduced(gradients, totals)

    def _is_finite(self, vector: Tensor, gradients: list[Sequence[Tensor]]) -> Tensor:
        """Whether all that is stepped here is finite: of a copy the `vector` has no norm."""
        tensors = [vector]
        for stage, of_stage in zip(self._stages, gradients, strict=True):
            pairs = zip(stage.is_tied, of_stage, strict=True)
            tensors += [gradient for is_tied, gradient in pairs if is_tied]
        return torch.stack([tensor.isfinite().all() for tensor in tensors]).all()

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
    slots_here = {index: stage.slots for index, stage in stages.items()}
    names = {index: names for rank in gang.all_gather(slots_here) for index, names in rank.items()}
    every = slots([names[index] for index in range(num_stages)])
    return [every[index] for index in stages]
