"""Optimizers of weights in parts, so that no optimizer need know stacks of experts.

A stack [experts, rows, columns] is stepped matrix by matrix: each matrix as a weight of its own, to
the last bit. Many optimizers would silently do another thing with a stack: some flatten it, some
normalise it as a whole. Handed a vector with two dimensions, as a convolution has, an optimizer
sees its entries in one dimension: MARS would take it for a matrix. Balance biases have a rule of
their own.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from pipegap.trainer.optimizers.averaging import averages, evaluated
from pipegap.trainer.optimizers.routing import BALANCE, EXPERTS, VECTOR, Group, Kind, Parameters
from pipegap.trainer.optimizers.state import options, replace_options

PARTS = "parts"
"""Key of the state of a weight that is seen in parts: a list with the state of each of them."""


def optimizer_in_parts(
    make: Callable[[Parameters], Optimizer], parameters: Parameters, *, is_entrywise: bool
) -> Optimizer:
    """The optimizer that `make` returns for matrices, embeddings and vectors, for all kinds.

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
    """Has the weights of `parameters`, and steps the optimizer of `make` on matrices and vectors.

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
        for group in self._inner.param_groups:
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
        """The matrices of a stack, or a vector in one dimension; `values` are as the weight is."""
        return values.unbind() if weight in self._stacks else [values.reshape(-1)]

    def _lend(self) -> None:
        """Gives the inner optimizer today's weights, gradients, state and options.

        A version of the weights may lie elsewhere than the one before it, and a restored state is
        another object.
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
        for outer_group, inner_group in zip(
            self.param_groups, self._inner.param_groups, strict=False
        ):
            replace_options(inner_group, outer_group)

    def _take_back(self) -> None:
        for weight, views in self._views.items():
            self.state[weight] = {PARTS: [self._inner.state[view] for view in views]}
            for view in views:
                view.grad = None
        for weight in self._others:
            self.state[weight] = self._inner.state[weight]
        self._inner.state.clear()  # else a replaced state would live until the next step
        for outer_group, inner_group in zip(
            self.param_groups, self._inner.param_groups, strict=False
        ):
            replace_options(outer_group, inner_group)
