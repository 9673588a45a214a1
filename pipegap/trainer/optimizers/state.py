"""What a stage asks of an optimizer beside its steps: its state by weight; and optimizers of
weights in parts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map, tree_map_only, tree_structure
from typing_extensions import override

from pipegap.trainer.optimizers.averaging import averages, evaluated
from pipegap.trainer.optimizers.routing import BALANCE, EXPERTS, VECTOR, Group, Kind, Parameters

State = dict[str, Any]


def by_weight(optimizer: Optimizer) -> dict[nn.Parameter, State]:
    """Weight → its state and the options of its group, where some optimizers count their steps."""
    states = optimizer.state
    return {
        weight: {"state": dict(states.get(weight, {})), "options": options(group)}
        for group in optimizer.param_groups
        for weight in group["params"]
    }


def options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a parameter group without its parameters."""
    return {key: value for key, value in group.items() if key != "params"}


def copied(nest: Any) -> Any:
    """A copy of a state or of several: of each tensor alone, not of a vector that it is part of."""
    return tree_map_only(Tensor, lambda t: t if isinstance(t, nn.Parameter) else t.clone(), nest)


def replace_options(group: dict[str, Any], by: Mapping[str, Any]) -> None:
    """Gives `group` the options of the group `by` in place of its own, and keeps its weights."""
    weights = group["params"]
    group.clear()  # some optimizers add options as they step, which `by` may not have
    group.update(by, params=weights)


def restore(optimizer: Optimizer, saved: Mapping[nn.Parameter, State]) -> None:
    """Restores a copy of what `by_weight` returned, for the same kinds of weights.

    It is a copy because stages that share a tied weight must not share its moments.
    """
    copies = {w: {**of, "state": copied(of["state"])} for w, of in saved.items()}
    adopt(optimizer, copies)


def adopt(optimizer: Optimizer, saved: Mapping[nn.Parameter, State]) -> None:
    """Makes the optimizer go on with these very tensors, in the form that `by_weight` returns.

    It is exact to the last bit, while torch's own `load_state_dict` casts tensors to the weight's
    dtype.
    """
    groups = [group["params"] for group in optimizer.param_groups]
    index = {weight: i for i, weight in enumerate(chain.from_iterable(groups))}
    states = {weight: saved[weight]["state"] for weight in index}
    optimizer.load_state_dict(
        {
            "state": {i: states[weight] for weight, i in index.items() if states[weight]},
            "param_groups": [
                {**saved[weights[0]]["options"], "params": [index[w] for w in weights]}
                for weights in groups
            ],
        }
    )
    for weight, state in states.items():
        _correct(optimizer.state[weight], state)


def load(optimizer: Optimizer, packed: Mapping[str, Any]) -> None:
    """The optimizer's own `load_state_dict`, but exact to the last bit as `adopt` is.

    The optimizer gets containers of its own with the tensors of `packed`: ZeroRedundancyOptimizer
    takes from what it loads the states of other ranks' weights.
    """
    optimizer.load_state_dict(tree_map(lambda leaf: leaf, dict(packed)))
    if {"state", "param_groups"} <= packed.keys():
        for group, of_group in zip(optimizer.param_groups, packed["param_groups"], strict=True):
            for weight, id_ in zip(group["params"], of_group["params"], strict=True):
                loaded = optimizer.state.get(weight)
                if id_ in packed["state"] and loaded is not None:  # None: another rank's weight
                    _correct(loaded, packed["state"][id_])


def _correct(loaded: State, saved: State) -> None:
    """Puts saved values back where `load_state_dict` has cast, moved or spoiled them."""
    for key, value in saved.items():
        if key in loaded and _stays(key, value):
            loaded[key] = value
        elif key in loaded and tree_structure(value) == tree_structure(loaded[key]):
            loaded[key] = tree_map(_exactly, value, loaded[key])


def _stays(key: str, value: Any) -> bool:
    """Whether a value is a tensor of one number that stays where it was saved, such as NAdam's
    product of momenta. Torch would move it to the GPU, where the host would wait for it; torch
    leaves only `step` where it belongs."""
    return key != "step" and isinstance(value, Tensor) and value.dim() == 0


def _exactly(saved: Any, loaded: Any) -> Any:
    """The saved value, on the device that torch's `load_state_dict` chose for `loaded`.

    Numbers stay as loaded, because hooks of the optimizer may have set them.
    """
    if not isinstance(saved, Tensor) or not isinstance(loaded, Tensor):
        # A word comes back as str(generator): torch casts it letter by letter.
        return loaded if isinstance(loaded, Number) else saved
    return loaded if loaded.dtype == saved.dtype else saved.to(loaded.device)


# Optimizers of weights in parts, so that no optimizer need know stacks of experts.
#
# A stack [experts, rows, columns] is stepped matrix by matrix: each matrix as a weight of its
# own, to the last bit. Many optimizers would silently do another thing with a stack: some flatten
# it, some normalise it as a whole. A weight of kind `vector` with two dimensions or more, such as a
# convolution's, is handed over in one dimension: MARS would take it for a matrix.

PARTS = "parts"
"""Key in the state of a weight that is stepped in parts: a list with the state of each part."""


def optimizer_in_parts(
    make: Callable[[Parameters], Optimizer], parameters: Parameters, *, is_entrywise: bool
) -> Optimizer:
    """An optimizer of all kinds of weights, from `make`, which knows matrices, embeddings and
    vectors.

    An optimizer that `is_entrywise` gets a whole stack as if it were a matrix.
    """
    has_biases = any(kind == BALANCE for kind, _ in parameters)
    if is_entrywise and not has_biases:
        return make([("matrix" if kind == EXPERTS else kind, p) for kind, p in parameters])
    if has_biases or any(_is_seen_in_parts(kind, weight) for kind, weight in parameters):
        return OptimizerInParts(make, parameters, is_entrywise=is_entrywise)
    return make(parameters)


def _is_seen_in_parts(kind: Kind, weight: Tensor) -> bool:
    return kind == EXPERTS or (kind == VECTOR and weight.ndim > 1)


class OptimizerInParts(Optimizer):
    """Steps the weights of `parameters` by the optimizer that `make` returns, stacks in parts.

    Balance biases b have a rule of their own: b ← b − sign(gradient), whatever the learning rate.
    State and options are kept here, by weight, and lent to the inner optimizer for each step.
    """

    def __init__(
        self, make: Callable[[Parameters], Optimizer], parameters: Parameters, *, is_entrywise: bool
    ) -> None:
        self._views: dict[Tensor, list[nn.Parameter]] = {}
        self._stacks = {weight for kind, weight in parameters if kind == EXPERTS}
        self._biases = [weight for kind, weight in parameters if kind == BALANCE]
        self._inner = make(list(self._seen_by_inner(parameters, is_entrywise)))
        weight_of = {view: weight for weight, views in self._views.items() for view in views}
        groups: list[Group] = []
        for group in self._inner.param_groups:  # a weight once, for all its views
            weights = dict.fromkeys(weight_of.get(part, part) for part in group["params"])
            groups.append({**options(group), "params": list(weights)})
        self._others = [p for group in groups for p in group["params"] if p not in self._views]
        if self._biases:  # every group has a learning rate; these biases do not use theirs
            groups.append({"params": self._biases, "lr": 0.0})
        super().__init__(groups, {})

    @property
    def inner(self) -> Optimizer:
        """The optimizer of matrices and vectors, whose groups come first here."""
        return self._inner

    @torch.no_grad()
    def evaluation_weights(self) -> dict[Tensor, Tensor]:
        """Weight → tensor to evaluate in its place; most often the weight itself."""
        if not averages(self._inner):
            return {weight: weight for group in self.param_groups for weight in group["params"]}
        self._lend()
        parts_seen = [*self._others, *chain.from_iterable(self._views.values())]
        inner = dict(zip(parts_seen, evaluated(self._inner, parts_seen), strict=True))
        tensor_of_weight: dict[Tensor, Tensor] = {bias: bias for bias in self._biases}
        tensor_of_weight.update({weight: inner[weight] for weight in self._others})
        for weight, views in self._views.items():
            tensor_of_weight[weight] = torch.stack([inner[view] for view in views]).view_as(weight)
        return tensor_of_weight

    @override
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self._lend()
        self._inner.step()
        self._take_back()
        for bias in self._biases:
            if bias.grad is not None:
                bias.sub_(bias.grad.sign())

    def _seen_by_inner(
        self, parameters: Parameters, is_entrywise: bool
    ) -> Iterator[tuple[Kind, nn.Parameter]]:
        for kind, weight in parameters:
            if kind == EXPERTS and is_entrywise:
                yield "matrix", weight
            elif _is_seen_in_parts(kind, weight):
                parts = self._parts(weight, weight.data)
                self._views[weight] = [nn.Parameter(part, requires_grad=False) for part in parts]
                seen_as: Kind = "matrix" if kind == EXPERTS else kind
                yield from ((seen_as, view) for view in self._views[weight])
            elif kind != BALANCE:
                yield kind, weight

    def _parts(self, weight: Tensor, values: Tensor) -> Sequence[Tensor]:
        """The matrices of a stack, or a vector in one dimension; `values` have `weight`'s shape."""
        return values.unbind() if weight in self._stacks else [values.reshape(-1)]

    def _lend(self) -> None:
        """Gives the inner optimizer the present weights, gradients, state and options.

        They are other objects than at the last step: each version of the weights lies in other
        memory, and a restored state is new.
        """
        for weight, views in self._views.items():
            states = self.state[weight][PARTS] if self.state[weight] else [{} for _ in views]
            data, gradient = self._parts(weight, weight.data), weight.grad
            gradients = [None] * len(views) if gradient is None else self._parts(weight, gradient)
            for view, part, grad, state in zip(views, data, gradients, states, strict=True):
                view.data, view.grad = part, grad
                self._inner.state[view] = state
        for weight in self._others:
            self._inner.state[weight] = self.state[weight]
        # The inner groups come first here: the group of balance biases has none.
        for outer, inner in zip(self.param_groups, self._inner.param_groups, strict=False):
            replace_options(inner, outer)

    def _take_back(self) -> None:
        for weight, views in self._views.items():
            self.state[weight] = {PARTS: [self._inner.state[view] for view in views]}
            for view in views:
                view.grad = None
        for weight in self._others:
            self.state[weight] = self._inner.state[weight]
        self._inner.state.clear()  # else a replaced state would live until the next step
        for outer, inner in zip(self.param_groups, self._inner.param_groups, strict=False):
            replace_options(outer, inner)
