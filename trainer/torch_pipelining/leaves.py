"""Two sets of weights for one module, which is the user's own: it has no copies."""

from operator import is_

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pipegap.trainer.base.errors import some
from pipegap.trainer.stages.versions import places_of
from pipegap.trainer.torch_pipelining import refusals

OWN = 2
"""The set that the user's optimizer steps, beside those that even and odd batches compute on."""


class Leaves:
    """Sets of leaves of which the module shows one at a time (as in `stages.versions`).

    So mode, buffers, attributes and hooks of the module are those that it has at a pass. What a
    weight itself has, a leaf follows: attributes and hooks, and whether it requires a gradient.
    """

    def __init__(self, module: nn.Module, apart: bool) -> None:
        refusals.require_plain(module)
        self._are_apart = apart
        self.modules = [module, module]
        self._module, self._shown = module, OWN
        self._sets: list[list[nn.Parameter]] = []
        self.names: list[str] = []

    def sets(self) -> list[list[nn.Parameter]]:
        """The weights of even batches, those of odd ones, and the module's own, in its order.

        Unless they are `apart` those of odd batches lie in the memory of its own, at first.
        """
        if not self._sets:
            own = [*self._module.parameters()]
            lazy = [name for name, weight in self._module.named_parameters() if is_lazy(weight)]
            allowed = "must have a shape before the first batch: call the module once"
            refusals.require(not lazy, "stage", some(lazy), allowed)
            are_new = True, self._are_apart
            self._sets = [*([_leaf(w, w.data, is_new) for w in own] for is_new in are_new), own]
            self._look()
        return self._sets

    def show(self, number: int = OWN) -> None:
        """Makes the module show the weights of this set."""
        if number != self._shown:
            for shown, name, weight in self._columns[number]:
                shown[name] = weight
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
        own, parts = self._sets[OWN], [*self._module.modules()]
        names = {id(weight): name for name, weight in self._module.named_parameters()}
        at = dict(zip(names, places_of(self._module), strict=True))
        others = [names[key] for key in {*names} - {*map(id, own)}]
        others += [name for name, w in zip(self.names, own, strict=False) if id(w) not in names]
        allowed = "must have the weights that it had at the first batch: make the schedule anew"
        refusals.require(not others, "stage", some(sorted({*others})), allowed)
        self.names = [names[id(weight)] for weight in own]
        self._columns = [
            [
                (part._parameters, name, weight)
                for weight, mine in zip(weights, own, strict=True)
                for part, name in at[id(mine)]
            ]
            for weights in self._sets
        ]
        of_parts = [of for part in parts for of in (part._parameters, part._modules)]
        self._seen = [(of, [*of.values()]) for of in of_parts]

    def _is_as_seen(self) -> bool:
        return all(
            len(of) == len(values) and all(map(is_, of.values(), values))
            for of, values in self._seen
        )


def _leaf(weight: nn.Parameter, data: Tensor, is_new: bool) -> nn.Parameter:
    """A leaf of the weight's class and attributes, also of those that it gets later."""
    data = data.clone() if is_new else data
    if type(data) is not Tensor:
        return nn.Parameter(data, weight.requires_grad)
    leaf: nn.Parameter = Tensor._make_subclass(type(weight), data, weight.requires_grad)
    leaf.__dict__ = weight.__dict__
    return leaf
