"""The two versions of a stage's weights that passes read, in the buffers of Megatron's DDP.

Version v lies in set v % 2: update t writes W(t+1) over W(t−1), which nobody reads any more. A pass
has the module show the set of its batch: `.data` of its parameters. Autograd saves parameters
themselves, so a backward reads what is shown then; and where a layer saves a view of its weight, as
plain F.linear does, the set that it lies in is not written before its backward.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class TwoSets:
    """The newest weights are those of `model`, its DDP and its optimizers outside of a pass.

    The first batch after `start` updates is the first whose weights are an update old.
    """

    are_leaves = False  # of `Passes`: nothing is undone after an exception

    def __init__(self, model: Any, optimizers: Sequence[Any], start: int) -> None:
        self._model, self._start = model, start
        self._parameters = [*model.parameters()]
        self.groups = model.bucket_groups + model.expert_parallel_bucket_groups
        buffers = [b for b in model.buffers + model.expert_parallel_buffers if b.param_data is not None]
        self._flat = [(buffer, (buffer.param_data, buffer.param_data.clone())) for buffer in buffers]
        second = {
            weight: flat[1][begin:end].view(weight.shape)
            for buffer, flat in self._flat
            for weight, (begin, end, _) in buffer.param_index_map.items()
        }
        self._sets = [[weight.data for weight in self._parameters], []]
        for weight in self._parameters:
            copy = weight.data.clone() if weight.requires_grad and weight not in second else weight.data
            self._sets[1].append(second.get(weight, copy))
        # fp32 weights of a DistributedOptimizer, whose shards it steps where they lie.
        self._shards = [
            (shard, [flat[i].as_strided(shard.shape, (1,), shard.storage_offset()) for i in (0, 1)])
            for inner in optimizers
            for shard in inner.get_parameters()
            for _, flat in self._flat
            if shard.untyped_storage().data_ptr() == flat[0].untyped_storage().data_ptr()
        ]
        self.newest = self._shown = 0

    def version(self, batch: int) -> int:
        """The number of updates of the weights that a batch reads."""
        return min(batch, max(self._start, batch - 1))

    def module(self, batch: int) -> Any:
        """The model, with the weights that a batch reads."""
        self._show(self.version(batch) % 2)
        return self._model

    def release(self) -> Any:
        """The model, with the newest weights."""
        self._show(self.newest)
        return self._model

    def forget_gradients(self) -> None:
        """Nothing: gradients lie in Megatron's buffers."""

    def _show(self, number: int) -> None:
        if number != self._shown:
            for weight, value in zip(self._parameters, self._sets[number], strict=True):
                weight.data = value
            self._shown = number

    def move(self, number: int, *dtypes: torch.dtype) -> None:
        """Set `number` becomes that of the newest weights. Those of `dtypes` are copied to it: what
        an optimizer steps in place; Megatron copies an optimizer's fp32 weights over all others."""
        for value, copy in zip(self._sets[1 - number], self._sets[number], strict=True):
            if value.dtype in dtypes:
                copy.copy_(value)
        self.newest = number
        self._show(number)
        for buffer, flat in self._flat:
            buffer.param_data = flat[number]
            for bucket in buffer.buckets:
                bucket.param_data = flat[number][bucket.offset :][: bucket.param_data.numel()]
        for group in self.groups:
            group.cached_param_buffer_shard_list = [None] * len(group.buckets)
        for shard, views in self._shards:
            shard.data = views[number]

    @contextmanager
    def update(self, version: int) -> Iterator[None]:
        """A context in which the optimizers turn W(version − 1) into W(version).

        Autograd's count of the changes of a parameter stays: it would stop backwards in flight,
        which read the other set.
        """
        with torch.autograd._unsafe_preserve_version_counter(tuple(self._parameters)):
            self.move(version % 2, torch.float32)
            yield
        for group in self.groups:  # the next forward gathers the weights
            group.param_gather_dispatched = False

    @contextmanager
    def without_gathers(self) -> Iterator[None]:
        """A context for the sum of gradients. With `overlap_param_gather` Megatron takes weights for
        changed when their gradients are summed; here they change later, in `update`."""
        dispatched = [group.param_gather_dispatched for group in self.groups]
        yield
        for group, is_dispatched in zip(self.groups, dispatched, strict=True):
            group.param_gather_dispatched = is_dispatched

    def gather(self) -> None:
        """Ends the gathers of the newest weights that a forward would begin or wait for."""
        for group in self.groups if self._model.ddp_config.overlap_param_gather else ():
            if group.param_gather_handle or not group.param_gather_dispatched:
                group.start_param_sync(force_sync=True)
