"""The two versions of a stage's weights that batches compute on, beside the newest one.

They are leaves that the user's own module shows in turn, or the weights of copies that the user
made of a wrapped module.
"""

from collections.abc import Sequence
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo import OptimizedModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from pipegap.trainer.base.errors import some
from pipegap.trainer.base.flat import copy_into, owns_memory
from pipegap.trainer.stages.versions import places_of
from pipegap.trainer.torch_pipelining import refusals


class TwoVersions:
    """Batch t computes on version t mod 2, a set of weights of its own; `whole` is the user's.

    The sets are leaves that `whole` shows in turn, or the weights of the two `copies`.

    The newest weights, W(t), are also the version that batch t + 1 computes on. Where nothing
    shards or casts the weights, the newest ones lie in the memory of that version from `start` on,
    so that the three sets take the memory of two.
    """

    def __init__(
        self, whole: nn.Module, copies: Sequence[nn.Module] | None, *, reads_ahead: bool
    ) -> None:
        self.are_leaves = copies is None
        self._sets = Leaves(whole) if copies is None else Copies(whole, copies)
        self.modules = self._sets.modules
        """The modules that even and odd batches compute on: one, or the copies."""
        self.whole, self.reads_ahead = whole, reads_ahead
        self.newest: list[nn.Parameter] = []
        """The user's weights, from `start` on."""
        self._last_fresh = -1
        """The last batch that computes on the newest weights."""

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
        if not self.newest:  # afterwards a version may lie in their memory too
            owns_its_memory = [not is_lazy(w) and owns_memory(w) for w in self.whole.parameters()]
            self._may_alias = all(owns_its_memory) and not self.reads_ahead
        else:
            self._leave_vectors()
        *self._weights, self.newest = self._sets.sets(apart=not self._may_alias)
        this_set, next_set = self.weights(batch), self.weights(batch + 1)
        every = [*zip(self.newest, this_set, next_set, strict=True)]
        is_plain = not any(isinstance(weight, DTensor) for weight in chain(*every))
        is_cast = any(len({weight.dtype for weight in of}) > 1 for of in every)
        self._is_aliased = self._may_alias and bool(every) and is_plain and not is_cast
        if self._is_aliased:
            # The newest weights stay where they are: a checkpoint may be on its way to there.
            for weight, this_leaf, next_leaf in every:
                if this_leaf.data_ptr() == weight.data_ptr():
                    this_leaf.data = next_leaf.data
                next_leaf.data = weight.data
        else:
            copy_into(next_set, self.newest)
        copy_into(this_set, self.newest)
        self._memory = [[weight.detach() for weight in self.weights(t)] for t in (0, 1)]
        self._kinds = [(w.shape, w.dtype, w.device) for w in self.newest]
        self._last_fresh = batch

    def follow(self, batch: int, version: int) -> None:
        """Before the first forward of a batch: what the user did to the module is followed.

        The newest weights are W(version). Raises BadInput for what cannot be followed.
        """
        self._sets.follow(batch % 2)
        self._leave_vectors()
        for i, weight in enumerate(self.newest):
            next_memory = self._memory[(version + 1) % 2][i]
            if self._is_aliased and weight.data_ptr() == next_memory.data_ptr():
                continue
            kind, allowed = self._kinds[i], "must keep its shape, dtype and device from here on"
            is_kept = kind == (weight.shape, weight.dtype, weight.device)
            refusals.require(is_kept, "stage", self.names[i], allowed)
            if self._is_aliased:  # the user gave it other memory
                next_memory.copy_(weight.detach())
                weight.data = next_memory
        if version == batch and not self._is_aliased and not self.reads_ahead:
            copy_into(self.weights(batch + 1), self.newest)  # which may be written in a drain

    def restore(self, batch: int, late: Sequence[Tensor], ahead_weights: Sequence[Tensor]) -> None:
        """The versions become what this batch computes on, one update late, and, if the correction
        `reads_ahead`, what the next one does; the newest weights are W(batch)."""
        self.start(batch)
        copy_into(self.weights(batch), late)
        if ahead_weights:
            copy_into(self.weights(batch + 1), ahead_weights)
        self._last_fresh = batch - 1

    def forget_gradients(self) -> None:
        """Drops gradients of the newest weights: those of a batch come from its version."""
        for weight in self.newest:
            weight.grad = None

    def move_gradients(self, batch: int) -> None:
        """Gives the newest weights the gradients of those that the batch computed on.

        Raises RuntimeError if a pass computed on a newest weight.
        """
        for i, (weight, leaf) in enumerate(zip(self.newest, self.weights(batch), strict=True)):
            if weight.grad is not None:
                raise RuntimeError(
                    f"{self.names[i]} is used beside the parameters of its module, where it is "
                    "newer than what the batch computes on: read it from its module"
                )
            gradient, leaf.grad = leaf.grad, None
            weight.grad = None if gradient is None else gradient.to(weight.dtype)

    def make_room(self, batch: int) -> Sequence[Tensor]:
        """Moves the newest weights, W(batch), to where version batch + 1 shall be.

        Returns W(batch) as it stays for the next batch; nothing if only the newest weights have it.
        """
        self._leave_vectors()
        if not self._is_aliased:
            return []
        this_memory, next_memory = (self._memory[t % 2] for t in (batch, batch + 1))
        torch._foreach_copy_(this_memory, next_memory)
        for weight, memory in zip(self.newest, this_memory, strict=True):
            weight.data = memory
        return next_memory

    def _leave_vectors(self) -> None:
        """Once the user joins weights to other memory, they all have their own from then on."""
        ours = {memory.data_ptr() for version in self._memory for memory in version}
        outside_weights = [weight for weight in self.newest if weight.data_ptr() not in ours]
        if self._is_aliased and not all(map(owns_memory, outside_weights)):
            self._may_alias = self._is_aliased = False
            for weight in self.newest:
                if weight.data_ptr() in ours:
                    weight.data = weight.data.clone()

    def show(self, batch: int, ahead_weights: Sequence[Tensor]) -> None:
        """Gives the version of this batch what late reads of version batch + 1 see."""
        if not self._is_aliased:
            copy_into(self.weights(batch), ahead_weights)


OWN = 2
"""The set that the user's optimizer steps, beside those that even and odd batches compute on."""


class Leaves:
    """Sets of leaves of which the module shows one at a time (as in `stages.versions`).

    So mode, buffers, attributes and hooks of the module are those that it has at a pass. What a
    weight itself has, a leaf follows: attributes and hooks, and whether it requires a gradient.
    """

    def __init__(self, module: nn.Module) -> None:
        refusals.require_plain(module)
        self.modules = [module, module]
        self._module, self._shown = module, OWN
        self._sets: list[list[nn.Parameter]] = []
        self.names: list[str] = []

    def sets(self, *, apart: bool) -> list[list[nn.Parameter]]:
        """The weights of even batches, those of odd ones, and the module's own, in its order.

        Unless they are `apart` those of odd batches lie in the memory of its own, at first.
        """
        if not self._sets:
            user_weights = [*self._module.parameters()]
            lazy = [name for name, weight in self._module.named_parameters() if is_lazy(weight)]
            allowed = "must have a shape before the first batch: call the module once"
            refusals.require(not lazy, "stage", some(lazy), allowed)
            are_new = True, apart
            self._sets = [
                *([_leaf(w, w.data, is_new) for w in user_weights] for is_new in are_new),
                user_weights,
            ]
            self._look()
        return self._sets

    def show(self, number: int = OWN) -> None:
        """Makes the module show the weights of this set."""
        if number != self._shown:
            for leaf, name, weight in self._columns[number]:
                leaf[name] = weight
            self._shown = number

    def follow(self, number: int) -> None:
        """The set is about to be computed on: it gets what the user did to the module's weights.

        Raises BadInput if the module has other weights than at the first batch.
        """
        if not self._is_as_seen():
            self._look()
        for weight, leaf in zip(self._sets[OWN], self._sets[number], strict=True):
            if leaf.requires_grad != weight.requires_grad:
                leaf.requires_grad_(weight.requires_grad)
            if leaf._backward_hooks is not weight._backward_hooks:
                leaf._backward_hooks = weight._backward_hooks

    def _look(self) -> None:
        """Notes where the module has its weights, and all that would tell that it has others."""
        user_weights, parts = self._sets[OWN], [*self._module.modules()]
        names = {id(weight): name for name, weight in self._module.named_parameters()}
        at = dict(zip(names, places_of(self._module), strict=True))
        missing_names = [names[key] for key in {*names} - {*map(id, user_weights)}]
        missing_names += [
            name for name, w in zip(self.names, user_weights, strict=False) if id(w) not in names
        ]
        allowed = "must have the weights that it had at the first batch: make the schedule anew"
        refusals.require(not missing_names, "stage", some(sorted({*missing_names})), allowed)
        self.names = [names[id(weight)] for weight in user_weights]
        self._columns = [
            [
                (part._parameters, name, weight)
                for weight, user_weight in zip(weights, user_weights, strict=True)
                for part, name in at[id(user_weight)]
            ]
            for weights in self._sets
        ]
        of_parts = [of for part in parts for of in (part._parameters, part._modules)]
        self._seen = [(of, [*of.values()]) for of in of_parts]

    def _is_as_seen(self) -> bool:
        return all(
            # By identity: == of two tensors compares entry by entry.
            len(of) == len(values) and all(map(is_, of.values(), values))
            for of, values in self._seen
        )


def _leaf(weight: nn.Parameter, data: Tensor, is_new: bool) -> nn.Parameter:
    """A leaf of the weight's class and attributes, also of those that it gets later."""
    data = data.clone() if is_new else data
    if type(data) is not Tensor:  # a DTensor, for one, whose class has parts of its own
        return nn.Parameter(data, weight.requires_grad)
    leaf: nn.Parameter = Tensor._make_subclass(type(weight), data, weight.requires_grad)
    leaf.__dict__ = weight.__dict__  # the same dict, so that later attributes are shared too
    return leaf


WRAPPERS = OptimizedModule | DistributedDataParallel
"""Modules that note in attributes what they did last: these are no user's."""
BOOKKEEPING = {*vars(nn.Module())}
HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_post_accumulate_grad_hooks", "_comm_hooks"),  # the latter of DDP
)
PLAIN = bool | int | float | str | None


class Copies:
    """Modules with weights of their own, since FSDP2, DDP and torch.compile tie what they keep to
    the weights that they were given.

    They follow the module's mode, buffers and attributes. What else was done to the module alone
    is refused: BadInput names it.
    """

    def __init__(self, module: nn.Module, twins: Sequence[nn.Module]) -> None:
        refusals.require_twins(module, twins)
        self.modules = [*twins]
        self._module = module
        self.names = [name for name, _ in module.named_parameters()]
        attributes_now = [_attributes(part) for part in module.modules()]
        copied = [
            {k: v for k, v in of.items() if not isinstance(v, PLAIN)} for of in attributes_now
        ]
        self._seen = [copied, [*copied]]
        """For each copy, the attributes of each part of the module that it has."""

    def sets(self, *, apart: bool) -> list[list[nn.Parameter]]:
        """The weights of even batches, of odd ones, and the module's: always apart."""
        return [[*module.parameters()] for module in (*self.modules, self._module)]

    def show(self, number: int = 0) -> None:
        """Nothing: a copy has its own weights."""

    def follow(self, number: int) -> None:
        """The copy is about to be computed on: it becomes like the module, but for its weights."""
        copy, attributes_seen = self.modules[number], self._seen[number]
        refusals.require_twins(self._module, self.modules)
        pairs = zip(self._module.modules(), copy.modules(), strict=True)
        for i, (user_part, copy_part) in enumerate(pairs):
            attributes_now = _attributes(user_part)
            changed = {
                k: v
                for k, v in attributes_now.items()
                if k not in attributes_seen[i] or attributes_seen[i][k] is not v
            }
            # The same dict of buffers: running statistics are of all batches, whichever copy ran.
            vars(copy_part).update(
                changed, training=user_part.training, _buffers=user_part._buffers
            )
            attributes_seen[i] = attributes_now
            _require_hooks(type(user_part).__name__, user_part, copy_part)
        named_weights = self._module.named_parameters()
        for (name, weight), copy_weight in zip(named_weights, copy.parameters(), strict=True):
            is_alike = weight.requires_grad == copy_weight.requires_grad
            allowed = "must require a gradient where the stage's module does: change all three"
            refusals.require(is_alike, "twins", name, allowed)
            _require_hooks(name, weight, copy_weight)


def _attributes(part: nn.Module) -> dict[str, Any]:
    """What the user may have set on this module: no weights, parts, hooks or functions."""
    if isinstance(part, WRAPPERS):
        return {}
    return {
        name: value
        for name, value in vars(part).items()
        if name not in BOOKKEEPING and not callable(value)
    }


def _require_hooks(name: str, of_user: Any, of_copy: Any) -> None:
    """Raises BadInput if the user's module or weight has other hooks than its copy."""
    numbers = [
        [len(getattr(of, hooks, None) or ()) for hooks in HOOKS] for of in (of_user, of_copy)
    ]
    allowed = "must have the hooks that the stage's module has: register them on all three"
    refusals.require(numbers[0] == numbers[1], "twins", name, allowed)
