"""A backward in two halves: first the input's gradient, later the weights' gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode


class WeightsLater(TorchFunctionMode):
    """Delays the weight gradients of linear layers that run in this context until `compute`.

    After the backward only the inputs of these layers and the gradients of their outputs are kept;
    the rest of the graph is freed. Layers with a bias, and weights that are not used by `F.linear`,
    get their gradient in the input half.
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
        """Computes the delayed gradients, by weight, and frees what they are made of."""
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
    """`F.linear` without bias; its backward computes only the gradient of the input."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,  # [batch, seq, in]
        weight: nn.Parameter,  # [out, in]
        products: list[Any],
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        # The leaf itself: autograd may unpack a saved tensor as another object.
        ctx.weight, ctx.products = weight, products
        return F.linear(x, weight)

    @staticmethod
    def backward(
        ctx: Any,
        gradient: Tensor,  # [batch, seq, out]
    ) -> tuple[Tensor, None, None]:
        x, weight = ctx.saved_tensors
        ctx.products.append((ctx.weight, gradient, x))
        return gradient @ weight, None, None


class Overwritten:
    """Lets a backward read newer weights than its forward did, as if an update had overwritten them
    in between: what autograd saved of a weight is read from `now`.

    What a forward computed from a weight, such as a copy in another dtype, stays as it was.
    """

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        self.now = leaves
        self._places = {leaf.untyped_storage().data_ptr(): i for i, leaf in enumerate(leaves)}

    def noted(self) -> saved_tensors_hooks:
        """A context for the forward."""
        return saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, saved: Tensor) -> Tensor | _OfWeight:
        place = self._places.get(saved.untyped_storage().data_ptr())
        if place is None:
            return saved
        return _OfWeight(place, saved.size(), saved.stride(), int(saved.storage_offset()))

    def _unpack(self, packed: Tensor | _OfWeight) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        return self.now[packed.place].detach().as_strided(*packed[1:])


class _OfWeight(NamedTuple):
    """A view of the weight at this place."""

    place: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class InFlight(NamedTuple):
    """What a stage keeps of a microbatch from its forward, which read `leaves`, to its backward."""

    x: Tensor
    output: Tensor
    leaves: list[nn.Parameter]
    weights_later: WeightsLater | None
    overwritten: Overwritten | None


class Halfway(NamedTuple):
    """What a stage keeps of a microbatch between the two halves of its backward: the leaves that it
    read, their gradients so far (`early`), and the weight gradients still to compute.
    """

    leaves: list[nn.Parameter]
    early: list[Tensor | None]
    weights_later: WeightsLater | None


def take_gradient(leaf: nn.Parameter) -> Tensor | None:
    """Returns the leaf's gradient and removes it: the next batch on this version starts anew."""
    gradient, leaf.grad = leaf.grad, None
    return gradient


def sum_of(leaf: nn.Parameter, *parts: Tensor | None) -> Tensor:
    """A microbatch's gradient of a leaf: the sum of what the halves of its backward gave.

    None stands for no gradient; if every half gave None, the sum is zero.
    """
    gradients = [part for part in parts if part is not None]
    return sum(gradients[1:], gradients[0]) if gradients else torch.zeros_like(leaf)
