"""A backward in two halves: the input's gradient now, the weights' when there is time for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class WeightsLater(TorchFunctionMode):
    """Puts the weight gradients of the linear layers that run inside off until they are asked for.

    After the backward only the inputs of these layers and their outputs' gradients are kept; all
    else of the graph is freed. Layers with a bias, and weights used otherwise than by `F.linear`,
    have their gradient with the input half.
    """

    def __init__(self) -> None:
        super().__init__()
        self._products: list[tuple[nn.Parameter, Tensor, Tensor]] = []

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replaces `F.linear`."""
        function = self._linear if function is F.linear else function
        return function(*args, **(kwargs or {}))

    @torch.no_grad()
    def compute(self) -> dict[nn.Parameter, Tensor]:
        """The gradients that were put off, by weight; lets go of what they are made of."""
        gradients: dict[nn.Parameter, Tensor] = {}
        for weight, gradient, x in self._products:
            product = gradient.flatten(0, -2).T @ x.flatten(0, -2)
            gradients[weight] = gradients[weight] + product if weight in gradients else product
        self._products.clear()
        return gradients

    def _linear(self, input: Tensor, weight: nn.Parameter, bias: Tensor | None = None) -> Tensor:
        if bias is not None:
            return F.linear(input, weight, bias)
        output: Tensor = _Linear.apply(input, weight, self._products)
        return output


class _Linear(torch.autograd.Function):
    """`F.linear` without bias, whose backward leaves the weight's gradient to be computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, products: list[Any]) -> Tensor:
        ctx.save_for_backward(x, weight)
        # The leaf itself: what was saved may come back as another tensor.
        ctx.weight, ctx.products = weight, products
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, weight = ctx.saved_tensors
        ctx.products.append((ctx.weight, gradient, x))
        return gradient @ weight, None, None


class InFlight(NamedTuple):
    """What a microbatch leaves on the stage between its forward and its backward."""

    x: Tensor
    output: Tensor
    weights_later: WeightsLater | None


class Halfway(NamedTuple):
    """Of a microbatch between the halves of its backward: the leaves it read, what they have of
    their gradients so far, and what is to come.
    """

    leaves: list[nn.Parameter]
    early: list[Tensor | None]
    weights_later: WeightsLater | None


def take_gradient(leaf: nn.Parameter) -> Tensor | None:
    """The leaf's gradient, which it gives up: the next batch on this version starts anew."""
    gradient, leaf.grad = leaf.grad, None
    return gradient


def sum_of(leaf: nn.Parameter, *parts: Tensor | None) -> Tensor:
    """A microbatch's gradient of a leaf from what each half of its backward found, if anything."""
    found = [part for part in parts if part is not None]
    return sum(found[1:], found[0]) if found else torch.zeros_like(leaf)
