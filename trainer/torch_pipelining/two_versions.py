"""The two versions of a stage's weights that batches compute on, beside the newest one."""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.delayed.copies import copy_into
from trainer.torch_pipelining import refusals
from trainer.torch_pipelining.copies import Copies
from trainer.torch_pipelining.leaves import Leaves


class Twins:
    """Batch t computes on version t mod 2, a set of weights of its own; `whole` is the user's.

    The sets are leaves that `whole` shows in turn, or weights of copies that were `given`.

    The newest version is read by the next batch but one, or it was just made: the version of that
    batch has it too. Where nothing shards or casts the weights, the newest ones lie in the memory
    of this version from `start` on, and all three take two sets.
    """

    def __init__(
        self, whole: nn.Module, given: Sequence[nn.Module] | None, *, reads_ahead: bool
    ) -> None:
        self.are_leaves = given is None
        self._sets = Leaves(whole, reads_ahead) if given is None else Copies(whole, given)
        self.whole, self.reads_ahead = whole, reads_ahead
        self.newest: list[nn.Parameter] = []
        """The user's weights, from `start` on."""
        self._last_fresh = -1
        """The last batch that computes on the newest weights."""

    @property
    def modules(self) -> list[nn.Module]:
        """The modules that even and odd batches compute on: one, or the copies."""
        return self._sets.modules

    @property
    def names(self) -> list[str]:
        """The names of the weights, in their order."""
        return self._sets.names or [name for name, _ in self.whole.named_parameters()]

    def module(self, batch: int) -> nn.Module:
        """The module that the batch computes on, with the weights that it computes on."""
        self._sets.show(batch % 2)
        return self.modules[batch % 2]

    def release(self) -> nn.Module:
        """The user's module, with the weights that its optimizer knows."""
        self._sets.show()
        return self.whole

    def weights(self, batch: int) -> list[nn.Parameter]:
        """The weights that the batch computes on, in the module's order; from `start` on."""
        return self._weights[batch % 2]

    def delays(self, batch: int) -> list[int]:
        """For each weight, how many updates old it is when the batch computes on it: 0 or 1.

        It is 0 for one that required no gradient: this one stays as it is.
        """
        is_late = batch > self._last_fresh
        return [int(is_late and weight.requires_grad) for weight in self.weights(batch)]

    def start(self, batch: int) -> None:
        """Both versions get the newest weights, W(batch)."""
        *self._weights, self.newest = self._sets.sets()
        mine, other = self.weights(batch), self.weights(batch + 1)
        every = [*zip(self.newest, mine, other, strict=True)]
        is_plain = not any(isinstance(weight, DTensor) for weight in chain(*every))
        is_cast = any(len({weight.dtype for weight in of}) > 1 for of in every)
        self._is_aliased = bool(every) and is_plain and not is_cast and not self.reads_ahead
        if self._is_aliased:
            # The newest weights stay where they are: a checkpoint may be on its way to there.
            for weight, here, there in every:
                if here.data_ptr() == weight.data_ptr():
                    here.data = there.data
                there.data = weight.data
        else:
            copy_into(other, self.newest)
        copy_into(mine, self.newest)
        self._memory = [[weight.detach() for weight in self.weights(t)] for t in (0, 1)]
        self._kinds = [(w.shape, w.dtype, w.device) for w in self.newest]
        self._last_fresh = batch

    @torch.no_grad()
    def follow(self, batch: int, version: int) -> None:
        """Before the first forward of a batch: what the user did to the module is followed.

        The newest weights are W(version). Raises BadInput for what cannot be followed.
        """
        self._sets.follow(batch % 2)
        for i, weight in enumerate(self.newest):
            there = self._memory[(version + 1) % 2][i]
            if self._is_aliased and weight.data_ptr() == there.data_ptr():
                continue
            kept, allowed = self._kinds[i], "must keep its shape, dtype and device from here on"
            is_kept = kept == (weight.shape, weight.dtype, weight.device)
            refusals.require(is_kept, "stage", self.names[i], allowed)
            if self._is_aliased:  # the user gave it other memory
                there.copy_(weight)
                weight.data = there

    def restore(self, batch: int, late: Sequence[Tensor], ahead: Sequence[Tensor]) -> None:
        """The versions become what this batch computes on, one update late, and, if the correction
        `reads_ahead`, what the next one does; the newest weights are W(batch)."""
        self.start(batch)
        copy_into(self.weights(batch), late)
        if ahead:
            copy_into(self.weights(batch + 1), ahead)
        self._last_fresh = batch - 1

    def forget_gradients(self) -> None:
        """Drops gradients of the newest weights: those of a batch come from its version."""
        for weight in self.newest:
            weight.grad = None

    def move_gradients(self, batch: int) -> None:
        """Gives the newest weights the gradients of those that the batch computed on.

        Raises RuntimeError if a pass computed on a newest weight.
        """
        for i, (mine, theirs) in enumerate(zip(self.newest, self.weights(batch), strict=True)):
            if mine.grad is not None:
                raise RuntimeError(
                    f"{self.names[i]} is used beside the parameters of its module, where it is "
                    "newer than what the batch computes on: read it from its module"
                )
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
        """Gives the version of this batch what late reads of version batch + 1 see."""
        if not self._is_aliased:
            copy_into(self.weights(batch), ahead)
