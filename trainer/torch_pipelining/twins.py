"""The two versions of a stage's weights that batches compute on, beside the newest one."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from trainer.delayed.kept_weights import copy_into
from trainer.torch_pipelining import refusals


class Twins:
    """Batch t computes on twin t mod 2, a module with weights of its own; `newest` is the user's.

    A module per version, and not leaves that are bound to one module in turn (`stages.versions`):
    FSDP2 and DDP tie what they keep to the weights that they were given.

    The newest version is read by the next batch but one, or it was just made: the twin of that
    batch has it too. Where nothing shards or casts the weights, the newest ones lie in the memory
    of this twin from `start` on, and all three modules take two sets.
    """

    def __init__(
        self, newest: nn.Module, given: Sequence[nn.Module] | None, *, reads_ahead: bool
    ) -> None:
        self.newest, self.reads_ahead = newest, reads_ahead
        if given is None:
            refusals.require_plain(newest)
            buffers = {id(buffer): buffer for buffer in newest.buffers()}
            given = [copy.deepcopy(newest, dict(buffers)) for _ in range(2)]
        refusals.require_twins(newest, given)
        self.modules = list(given)
        self._sharded = [part for part in newest.modules() if isinstance(part, FSDPModule)]
        self._weights: list[list[nn.Parameter]] = []  # of the twins and of `newest`, once started
        self._last_fresh = -1
        """The last batch that computes on the newest weights."""

    @property
    def is_started(self) -> bool:
        """Whether the twins have weights to compute on."""
        return bool(self._weights)

    def module(self, batch: int) -> nn.Module:
        """The module that the batch computes on."""
        return self.modules[batch % 2]

    def weights(self, batch: int) -> list[nn.Parameter]:
        """The weights that the batch computes on, in the module's order; from `start` on."""
        return self._weights[batch % 2]

    @property
    def newest_weights(self) -> list[nn.Parameter]:
        """The newest weights; until `start` they may be replaced."""
        return self._weights[-1] if self._weights else [*self.newest.parameters()]

    def reshard(self) -> None:
        """Drops whole weights: FSDP2 keeps those that an evaluation gathered, and no optimizer
        steps them."""
        for part in self._sharded:
            part.reshard()

    def delay(self, batch: int) -> int:
        """How many updates old the weights are that the batch computes on: 0 or 1."""
        return int(batch > self._last_fresh)

    def start(self, batch: int) -> None:
        """Both twins get the newest weights, W(batch)."""
        self.reshard()
        # Looked up once: to walk a module takes as long as a small microbatch.
        self._weights = [[*module.parameters()] for module in (*self.modules, self.newest)]
        every = [weight for weights in self._weights for weight in weights]
        is_plain = not any(isinstance(weight, DTensor) for weight in every)
        self._is_aliased = is_plain and not self.reads_ahead and len({w.dtype for w in every}) <= 1
        newest, mine, other = self.newest_weights, self.weights(batch), self.weights(batch + 1)
        if self._is_aliased:
            # The newest weights stay where they are: a checkpoint may be on its way to there.
            for weight, here, there in zip(newest, mine, other, strict=True):
                if here.data_ptr() == weight.data_ptr():
                    here.data = there.data
                there.data = weight.data
        else:
            copy_into(other, newest)
        copy_into(mine, newest)
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

    def make_room(self, batch: int) -> Sequence[Tensor]:
        """Moves the newest weights, W(batch), to where version batch + 1 shall be.

        Returns W(batch) as it stays for the next batch; nothing if only the newest weights have it.
        """
        if not self._is_aliased:
            return []
        here, kept = (self._memory[t % 2] for t in (batch, batch + 1))
        torch._foreach_copy_(here, kept)
        for weight, there in zip(self.newest_weights, here, strict=True):
            weight.data = there
        return kept

    def show(self, batch: int, ahead: Sequence[Tensor]) -> None:
        """Gives the twin of this batch what late reads of version batch + 1 see."""
        if not self._is_aliased:
            copy_into(self.weights(batch), ahead)
