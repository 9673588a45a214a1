"""The two versions of a stage's weights that batches compute on, beside the newest one."""

import copy
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.delayed.copies import copy_into
from trainer.torch_pipelining import refusals


class Twins:
    """Batch t computes on twin t mod 2, a module with weights of its own; `whole` is the user's.

    A module per version, and not leaves that are bound to one module in turn (`stages.versions`):
    FSDP2 and DDP tie what they keep to the weights that they were given.

    The newest version is read by the next batch but one, or it was just made: the twin of that
    batch has it too. Where nothing shards or casts the weights, the newest ones lie in the memory
    of this twin from `start` on, and all three modules take two sets.
    """

    def __init__(
        self, whole: nn.Module, given: Sequence[nn.Module] | None, *, reads_ahead: bool
    ) -> None:
        if given is None:
            refusals.require_plain(whole)
            buffers = {id(buffer): buffer for buffer in whole.buffers()}
            given = [copy.deepcopy(whole, dict(buffers)) for _ in range(2)]
        refusals.require_twins(whole, given)
        self.whole, self.modules, self.reads_ahead = whole, [*given], reads_ahead
        self.names = [name for name, _ in whole.named_parameters()]
        self.newest: list[nn.Parameter] = []
        """The user's weights, from `start` on."""
        self._last_fresh = -1
        """The last batch that computes on the newest weights."""

    def module(self, batch: int) -> nn.Module:
        """The module that the batch computes on."""
        return self.modules[batch % 2]

    def weights(self, batch: int) -> list[nn.Parameter]:
        """The weights that the batch computes on, in the module's order; from `start` on."""
        return self._weights[batch % 2]

    def delays(self, batch: int) -> list[int]:
        """For each weight, how many updates old it is when the batch computes on it: 0 or 1."""
        return [int(batch > self._last_fresh)] * len(self.newest)

    def start(self, batch: int) -> None:
        """Both twins get the newest weights, W(batch)."""
        # Looked up once: to walk a module takes as long as a small microbatch.
        *self._weights, self.newest = ([*m.parameters()] for m in (*self.modules, self.whole))
        every = [*chain(self.newest, *self._weights)]
        is_plain = not any(isinstance(weight, DTensor) for weight in every)
        self._is_aliased = is_plain and not self.reads_ahead and len({w.dtype for w in every}) <= 1
        mine, other = self.weights(batch), self.weights(batch + 1)
        if self._is_aliased:
            # The newest weights stay where they are: a checkpoint may be on its way to there.
            for weight, here, there in zip(self.newest, mine, other, strict=True):
                if here.data_ptr() == weight.data_ptr():
                    here.data = there.data
                there.data = weight.data
        else:
            copy_into(other, self.newest)
        copy_into(mine, self.newest)
        self._memory = [[weight.detach() for weight in self.weights(t)] for t in (0, 1)]
        self._last_fresh = batch

    def restore(self, batch: int, late: Sequence[Tensor], ahead: Sequence[Tensor]) -> None:
        """The twins get what this batch computes on, one update late, and, if the correction
        `reads_ahead`, what the next one does; the newest weights are W(batch)."""
        self.start(batch)
        copy_into(self.weights(batch), late)
        if ahead:
            copy_into(self.weights(batch + 1), ahead)
        self._last_fresh = batch - 1

    def move_gradients(self, batch: int) -> None:
        """Gives the newest weights the gradients of those that the batch computed on."""
        for mine, theirs in zip(self.newest, self.weights(batch), strict=True):
            gradient, theirs.grad = theirs.grad, None
            if gradient is not None and gradient.dtype != mine.dtype:
                gradient = gradient.to(mine.dtype)
            mine.grad = gradient

    def make_room(self, batch: int) -> Sequence[Tensor]:
        """Moves the newest weights, W(batch), to where version batch + 1 shall be.

        Returns W(batch) as it stays for the next batch; nothing if only the newest weights have it.
        """
        if not self._is_aliased:
            return []
        here, kept = (self._memory[t % 2] for t in (batch, batch + 1))
        torch._foreach_copy_(here, kept)
        for weight, there in zip(self.newest, here, strict=True):
            weight.data = there
        return kept

    def show(self, batch: int, ahead: Sequence[Tensor]) -> None:
        """Gives the twin of this batch what late reads of version batch + 1 see."""
        if not self._is_aliased:
            copy_into(self.weights(batch), ahead)
