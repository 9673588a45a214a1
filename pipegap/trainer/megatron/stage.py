"""What a stage of Megatron has in 2BW: two versions of its weights, messages, and gradients that
wait for their update."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.optimizer import clip_grads
from torch import Tensor
from torch.nn.utils import get_total_norm

from pipegap.trainer.base.flat import copy_into, storage
from pipegap.trainer.megatron.optimizers import CorrectedSteps
from pipegap.trainer.torch_pipelining.passes import BACKWARD, FORWARD, wait_for


class TwoSets:
    """The two versions of the weights that passes read, in the buffers of Megatron's DDP.

    Versions lie in the two sets in turn: update t writes W(t+1) over W(t−1), which nobody reads any
    more. A pass has the module show the set of its batch, as `.data` of its parameters. Autograd
    saves the parameters themselves, so a backward reads what is shown then; and where a layer saves
    a view of its weight, as plain F.linear does, the set that it lies in is not written before its
    backward.

    Outside of a pass the model, its DDP and its optimizers have the newest weights. The first batch
    whose weights are an update old comes after `start` updates. If a correction `reads_ahead`, the
    last batch before it reads W(start) in the set that is not that of W(start), whose late reads
    see a prediction.
    """

    are_leaves = False  # of `Passes`: nothing is undone after an exception

    def __init__(self, model: Any, optimizers: Sequence[CorrectedSteps], start: int) -> None:
        self._model, self._start = model, start
        self.reads_ahead = any(steps.hides_newest for steps in optimizers)
        self._parameters = [*model.parameters()]
        self._groups = model.bucket_groups + model.expert_parallel_bucket_groups
        self._flat = [
            (buffer, (buffer.param_data, buffer.param_data.clone()))
            for buffer in model.buffers + model.expert_parallel_buffers
            if buffer.param_data is not None
        ]
        second = [self._second(w.data) if w.requires_grad else w.data for w in self._parameters]
        self._sets = [[weight.data for weight in self._parameters], second]
        # fp32 weights of a DistributedOptimizer, whose shards it steps where they lie.
        shards = [shard for steps in optimizers for shard in steps.weights]
        self._shards = [
            (shard, (shard.data, self._second(shard.data)))
            for shard in shards
            if any(storage(shard) == storage(flat) for _, (flat, _) in self._flat)
        ]
        self._newest = self._shown = 0
        self.first = 0
        """The set with the weights before any update, or those that were loaded."""

    def _second(self, tensor: Tensor) -> Tensor:
        """A tensor of the second set: in the copy of the buffer that it lies in, or on its own."""
        for _, (flat, copy) in self._flat:
            if storage(tensor) == storage(flat):
                return copy.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return tensor.clone()

    def version(self, batch: int) -> int:
        """The number of updates of the weights that a batch reads."""
        return min(batch, max(self._start, batch - 1))

    def module(self, batch: int) -> Any:
        """The model, with the weights that a batch reads."""
        is_beside = self.reads_ahead and batch == self._start
        return self._show((self.version(batch) + is_beside + self.first) % 2)

    def older(self) -> Any:
        """The model, with the set that is not the newest: the next batch reads it if it is late."""
        return self._show(1 - self._newest)

    def release(self) -> Any:
        """The model, with the newest weights."""
        return self._show(self._newest)

    def forget_gradients(self) -> None:
        """Nothing: gradients lie in Megatron's buffers."""

    def _show(self, number: int) -> Any:
        if number != self._shown:
            for weight, value in zip(self._parameters, self._sets[number], strict=True):
                weight.data = value
            self._shown = number
        return self._model

    def copy_newest(self) -> None:
        """Both sets become the newest weights."""
        copy_into(self._sets[1 - self._newest], self._sets[self._newest])

    @contextmanager
    def update(self, version: int) -> Iterator[None]:
        """A context in which the optimizers turn W(version − 1) into W(version).

        Autograd's count of the changes of a parameter stays: it would stop backwards in flight,
        which read the other set.
        """
        with torch.autograd._unsafe_preserve_version_counter(tuple(self._parameters)):
            self._move((version + self.first) % 2)
            yield
        for group in self._groups:  # the next forward gathers the weights
            group.param_gather_dispatched = False

    def _move(self, number: int) -> None:
        """Set `number` becomes that of the newest weights. Those in fp32, which an optimizer steps
        in place, are copied to it; Megatron copies an optimizer's own over all others."""
        for value, copy in zip(self._sets[1 - number], self._sets[number], strict=True):
            if value.dtype == torch.float32:
                copy.copy_(value)
        self._newest = number
        self._show(number)
        for buffer, flat in self._flat:
            buffer.param_data = flat[number]
            for bucket in buffer.buckets:
                bucket.param_data = flat[number][bucket.offset :][: bucket.param_data.numel()]
        for group in self._groups:
            group.cached_param_buffer_shard_list = [None] * len(group.buckets)
        for shard, views in self._shards:
            shard.data = views[number]

    @contextmanager
    def without_gathers(self) -> Iterator[None]:
        """A context for the sum of gradients, after which, with `overlap_param_gather`, Megatron
        gathers weights anew; here they change later, in `update`."""
        dispatched = [group.param_gather_dispatched for group in self._groups]
        yield
        for group, is_dispatched in zip(self._groups, dispatched, strict=True):
            group.param_gather_dispatched = is_dispatched

    def gather(self) -> None:
        """Ends the gathers of the newest weights that a forward would begin or wait for."""
        for group in self._groups if self._model.ddp_config.overlap_param_gather else ():
            if group.param_gather_handle or not group.param_gather_dispatched:
                group.start_param_sync(force_sync=True)


class WaitingGradient:
    """The gradient of a batch for one inner optimizer, taken out of the buffers.

    Copies of the weight `tied`, on the first and on the last stage, get the sum over the group
    `ends`.
    """

    def __init__(self, steps: CorrectedSteps, tied: Any, ends: Any) -> None:
        self._steps, self._inner = steps, steps.inner
        ids_counted = {id(gradient) for gradient in self._inner.get_main_grads_for_grad_norm()}
        weights = [weight for weight in steps.weights if weight.grad is not None]
        self._pairs = [(weight, weight.grad.clone()) for weight in weights]
        self._counted = [g for weight, g in self._pairs if id(weight.grad) in ids_counted]
        summed = None if tied is None else _stepped(self._inner, tied)
        self._works = [
            dist.all_reduce(gradient, group=ends, async_op=True)
            for weight, gradient in self._pairs
            if weight is summed
        ]

    def begin_norm(self) -> None:
        """Corrects the gradient, and starts the sum of squares over the stages, once."""
        wait_for(self._works)
        self._steps.correct_gradients([gradient for _, gradient in self._pairs])
        norm = get_total_norm(self._counted).to(torch.cuda.current_device())
        self._square, group = norm.square(), self._inner.get_grad_stats_parallel_group()
        self._sum = dist.all_reduce(self._square, group=group, async_op=True)

    def square(self) -> float:
        """The square of the norm over all stages, when its sum is there."""
        self._sum.wait()
        return float(self._square)

    def give_back(self, norm: float | None) -> None:
        """Gives the gradient to the weights that the optimizer steps, clipped by the whole norm."""
        for weight, gradient in self._pairs:
            weight.grad = gradient
        limit = self._inner.config.clip_grad
        if limit > 0 and self._pairs:
            clip_grads.clip_grad_by_total_norm_fp32(self._steps.weights, limit, norm)


def _stepped(inner: Any, weight: Tensor) -> Tensor | None:
    """What an optimizer of Megatron's steps for a weight of the model, if it has some of it."""
    if at := getattr(inner, "model_param_group_index_map", {}).get(weight):
        group, number = at
        return inner.optimizer.param_groups[group]["params"][number]
    return getattr(weight, "main_param", weight)


class MegatronStage:
    """A stage of Megatron as `Passes` and its messages know one.

    Receives fill buffers in turn. A buffer is filled again when the backward of its microbatch came
    three passes before, or earlier (`Passes`); so as many as are in flight and three more suffice.
    """

    def __init__(self, model: Any) -> None:
        self.submod, self.group = model, model.pp_group
        self.stage_index, self.num_stages = self.group.rank(), self.group.size()
        self.is_first, self.is_last = self.stage_index == 0, self.stage_index == self.num_stages - 1
        self.lead = self.num_stages - 1 - self.stage_index
        self.device = next(model.parameters()).device
        self.fwd_cache: dict[int, Any] = {}  # of torch's stages: what is in flight is not here
        self.leaving: Any = None
        self._arriving: dict[str, deque[Tensor]] = {FORWARD: deque(), BACKWARD: deque()}
        self._ranks = dist.get_process_group_ranks(self.group)

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Makes the buffers, each of this shape: [length, sequences, width]."""
        size = {FORWARD: (not self.is_first) * (self.lead + 3), BACKWARD: (not self.is_last) * 4}
        self._buffers = {
            kind: deque(torch.empty(shape, dtype=dtype, device=self.device) for _ in range(num))
            for kind, num in size.items()
        }

    def take(self, kind: str) -> Tensor | None:
        """What the next pass of a kind received; None if no other stage sends it."""
        return self._arriving[kind].popleft() if self._arriving[kind] else None

    def _receive(self, kind: str, side: int) -> list[dist.P2POp]:
        buffer = self._buffers[kind][0].detach().requires_grad_(kind == FORWARD)
        self._buffers[kind].rotate(-1)
        self._arriving[kind].append(buffer)
        return [dist.P2POp(dist.irecv, buffer, self._ranks[self.stage_index + side])]

    def _send(self, side: int) -> list[dist.P2POp]:
        tensor = self.leaving.detach().contiguous()
        return [dist.P2POp(dist.isend, tensor, self._ranks[self.stage_index + side])]

    # As `Passes` asks for them, by the number of a microbatch, which come in order here.
    get_fwd_recv_ops = lambda self, _: self._receive(FORWARD, -1)  # noqa: E731
    get_bwd_recv_ops = lambda self, _: self._receive(BACKWARD, 1)  # noqa: E731
    get_fwd_send_ops = lambda self, _: self._send(1)  # noqa: E731
    get_bwd_send_ops = lambda self, _: self._send(-1)  # noqa: E731
