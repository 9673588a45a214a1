"""The two copies of a wrapped module that its user made: how they stay like the module."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch._dynamo import OptimizedModule
from torch.nn.parallel import DistributedDataParallel

from pipegap.trainer.torch_pipelining import refusals

WRAPPERS = OptimizedModule | DistributedDataParallel
"""Modules that note in attributes what they did last: these are no user's."""
BOOKKEEPING = {*vars(nn.Module())}
HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    "_post_accumulate_grad_hooks",
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
        now = [_attributes(part) for part in module.modules()]
        copied = [{k: v for k, v in of.items() if not isinstance(v, PLAIN)} for of in now]
        self._seen = [copied, [*copied]]
        """For each copy, the attributes of each part of the module that it has."""

    def sets(self) -> list[list[nn.Parameter]]:
        """The weights of even batches, of odd ones, and the module's, in its order."""
        return [[*module.parameters()] for module in (*self.modules, self._module)]

    def show(self, number: int = 0) -> None:
        """Nothing: a copy has its own weights."""

    def follow(self, number: int) -> None:
        """The copy is about to be computed on: it becomes like the module, but for its weights."""
        copy, seen = self.modules[number], self._seen[number]
        refusals.require_twins(self._module, self.modules)
        for i, (its, mine) in enumerate(zip(self._module.modules(), copy.modules(), strict=True)):
            now = _attributes(its)
            changed = {k: v for k, v in now.items() if k not in seen[i] or seen[i][k] is not v}
            vars(mine).update(changed, training=its.training, _buffers=its._buffers)
            seen[i] = now
            _require_hooks(type(its).__name__, its, mine)
        named = self._module.named_parameters()
        for (name, weight), theirs in zip(named, copy.parameters(), strict=True):
            is_alike = weight.requires_grad == theirs.requires_grad
            allowed = "must require a gradient where the stage's module does: change all three"
            refusals.require(is_alike, "twins", name, allowed)
            _require_hooks(name, weight, theirs)


def _attributes(part: nn.Module) -> dict[str, Any]:
    """What the user may have set on this module: no weights, parts, hooks or functions."""
    if isinstance(part, WRAPPERS):
        return {}
    return {
        name: value
        for name, value in vars(part).items()
        if name not in BOOKKEEPING and not callable(value)
    }


def _require_hooks(name: str, its: Any, mine: Any) -> None:
    """Raises BadInput if the user's module or weight has other hooks than its copy."""
    numbers = [[len(getattr(of, hooks, None) or ()) for hooks in HOOKS] for of in (its, mine)]
    allowed = "must have the hooks that the stage's module has: register them on all three"
    refusals.require(numbers[0] == numbers[1], "twins", name, allowed)
