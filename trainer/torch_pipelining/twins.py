"""The two versions of a stage's weights that batches compute on, beside the newest one."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.delayed.kept_weights import copy_into
from trainer.torch_pipelining import refusals


class Twins:
    """Batch t computes on twin t mod 2, a module with weights of its own; `newest` is the user's.

    A module per version, and not leaves that are bound to one module in turn (`stages.versions`):
    FSDP2 and DDP tie what they keep to the weights that they were given.

    The newest version is read by the next batch but one, or it was just made: the twin of that
    batch has it too. Where nothing shards or casts the weights, the newest ones lie in the memory
    of this twin, and all three modules take two sets.
    """

    def __init__(
        self, newest: nn.Module, given: Sequence[nn.Module] | None, *, reads_ahead: bool
    ) -> None:
        self.newest, self.reads_ahead = newest, reads_ahead
        self._are_given = given is not None
        if given is None:
            refusals.require_plain(newest)
            given = [_twin(newest), _twin(newest)]
        refusals.require_twins(newest, given)
        self._modules = list(given)
        self._versions = [0, 0]
        self._is_aliased = False
        self.is_started = False

    def module(self, batch: int) -> nn.Module:
        """The module that the batch computes on."""
        return self._modules[batch % 2]

    def weights(self, batch: int) -> list[nn.Parameter]:
        """The weights that the batch computes on, in the module's order."""
        return list(self.module(batch).parameters())

    def delay(self, batch: int) -> int:
        """How many updates old the weights are that the batch computes on."""
        return batch - self._versions[batch % 2]

    def delay_by(self, batch: int, delay: int) -> None:
        """Says that the weights that the batch computes on are this many updates old."""
        self._versions[batch % 2] = batch - delay

    @torch.no_grad()
    def start(self, version: int) -> None:
        """Both twins get the newest weights, which are of this version."""
        newest = list(self.newest.parameters())
        mine, other = self.weights(version), self.weights(version + 1)
        if not self.is_started:
            self._find_memory(newest, mine, other)
        elif self._is_aliased and mine[0].data_ptr() == newest[0].data_ptr():
            for one, another in zip(mine, other, strict=True):
                one.data, another.data = another.data, one.data
        copy_into(mine, newest)
        if not self._is_aliased:
            copy_into(other, newest)
        self._versions = [version, version]
        self.is_started = True

    def _find_memory(
        self, newest: Sequence[Tensor], mine: Sequence[Tensor], other: Sequence[Tensor]
    ) -> None:
        """The other twin lies where the newest weights lie, if it may; the rest lies alone."""
        self._is_aliased = self._may_alias([*mine, *other])
        if self._is_aliased:
            for weight, there in zip(newest, other, strict=True):
                there.data = weight.data
        if not self._are_given:  # what is given has memory of its own
            for weight in mine if self._is_aliased else [*mine, *other]:
                weight.data = torch.empty_like(weight.data)

    def _may_alias(self, twins: Sequence[Tensor]) -> bool:
        every = [*self.newest.parameters(), *twins]
        plain = not any(isinstance(weight, DTensor) for weight in every)
        return plain and not self.reads_ahead and len({w.dtype for w in every}) <= 1

    @torch.no_grad()
    def make_room(self, batch: int) -> Sequence[Tensor]:
        """Moves the newest weights, W(batch), to where version batch + 1 shall be.

        Returns W(batch) as it stays for the next batch; nothing if only the newest weights have it.
        """
        if not self._is_aliased:
            return []
        here, kept = self.weights(batch), self.weights(batch + 1)
        copy_into(here, kept)
        for weight, memory in zip(self.newest.parameters(), here, strict=True):
            weight.data = memory.data
        return kept

    def show(self, batch: int, ahead: Sequence[Tensor]) -> None:
        """Gives the twin of this batch what late reads of version batch + 1 see."""
        if not self._is_aliased:
            copy_into(self.weights(batch), ahead)
        self._versions[batch % 2] = batch + 1


def _twin(module: nn.Module) -> nn.Module:
    """Return a copy of the module with its buffers and with parameters of its own, which lie in the
    module's memory until `start`."""
    same: dict[int, Tensor] = {id(buffer): buffer for buffer in module.buffers()}
    same |= {id(w): nn.Parameter(w.data, w.requires_grad) for w in module.parameters()}
    return copy.deepcopy(module, same)
