"""A backward in two halves, first the input's gradient, later the weights' gradients, and the sums
of these over microbatches and replicas, in the dtype of the master.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from pipegap.trainer.base.flat import pieces, storage
from pipegap.trainer.schedules.operations import Schedule

Function = Callable[[Tensor], Tensor]
Leaves = Sequence[nn.Parameter]
"""Of the weights of a stage, in the version that an operation reads."""


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
            product = gradient.flatten(0, -2).T @ x.flatten(0, -2)  # [out, in]
            gradients[weight] = gradients[weight] + product if weight in gradients else product
        self._products.clear()
        return gradients

    def _linear(self, input: Tensor, weight: nn.Parameter, bias: Tensor | None = None) -> Tensor:
        if bias is not None:
            return F.linear(input, weight, bias)
        return _Linear.apply(input, weight, self._products)


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
        self._numbers = {storage(leaf): i for i, leaf in enumerate(leaves)}

    def noted(self) -> saved_tensors_hooks:
        """A context for the forward."""
        return saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, saved: Tensor) -> "Tensor | _OfWeight":
        number = self._numbers.get(storage(saved))
        if number is None:
            return saved
        return _OfWeight(number, saved.size(), saved.stride(), int(saved.storage_offset()))

    def _unpack(self, packed: "Tensor | _OfWeight") -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        leaf = self.now[packed.number].detach()
        return leaf.as_strided(packed.size, packed.stride, packed.offset)


class _OfWeight(NamedTuple):
    """A view of the weight with this number."""

    number: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class Microbatch:
    """What a stage keeps of a microbatch, from its forward to the second half of its backward.

    The forward reads `leaves`. With `splits_backward`, `gradients` computes the weight gradients of
    the linear layers. With `in_place` the backward may read newer weights than the forward did.
    """

    def __init__(
        self,
        x: Tensor,  # tokens [batch, seq], or hidden states [batch, seq, hidden]
        leaves: Leaves,
        *,
        splits_backward: bool = False,
        in_place: bool = False,
    ) -> None:
        self.leaves = leaves
        self.weights_later = WeightsLater() if splits_backward else None
        self._x = x.detach().requires_grad_(x.is_floating_point())
        self._overwritten = Overwritten(leaves) if in_place else None
        self.early: list[Tensor | None] = []

    def forward(self, run: Function, loss: Function | None) -> Tensor:
        """Returns `loss` of what `run` makes of the input, or that itself, without its graph."""
        is_noted = self._overwritten.noted() if self._overwritten else nullcontext()
        with self.weights_later or nullcontext(), is_noted:
            output = run(self._x)
        self._output = output if loss is None else loss(output)
        return self._output.detach()

    def backward_input(
        self,
        gradient: Tensor | None,  # of the output; None if that is a loss
        leaves_now: Leaves,  # the leaves that the module has at the backward
    ) -> Tensor | None:
        """Returns the gradient of the input, and frees the activations."""
        x, output, overwritten = self._x, self._output, self._overwritten
        del self._x, self._output, self._overwritten
        if overwritten:
            overwritten.now = leaves_now
        torch.autograd.backward(output, gradient)
        self.early = [leaf.grad for leaf in self.leaves]
        for leaf in self.leaves:
            leaf.grad = None  # another microbatch that reads this version starts from zero
        return x.grad

    def gradients(self) -> list[Tensor]:
        """Returns the gradient of each leaf, summed over the two halves; zero where it has none."""
        late = self.weights_later.compute() if self.weights_later else {}
        return [
            _sum_of(leaf, gradient, late.get(leaf))
            for leaf, gradient in zip(self.leaves, self.early, strict=True)
        ]


class Recomputed(Microbatch):
    """A microbatch of which a stage keeps the input alone, from its forward to its backward.

    The backward first runs the forward again, at the version that the module has by then: so all
    that it reads is of that version, activations and what the forward computed from weights alike.
    The gradient that it gets is of the first forward's output. The last stage keeps its
    activations: its backward follows its forward, at the same version.
    """

    @override
    def forward(self, run: Function, loss: Function | None) -> Tensor:
        if loss is not None:
            return super().forward(run, loss)
        self._again = run
        with torch.no_grad():
            return run(self._x)

    @override
    def backward_input(self, gradient: Tensor | None, leaves_now: Leaves) -> Tensor | None:
        if gradient is not None:
            self.leaves = leaves_now
            super().forward(self._again, None)
        return super().backward_input(gradient, leaves_now)


def microbatches_of(schedule: Schedule) -> Callable[[Tensor, Leaves], Microbatch]:
    """What makes a microbatch of its input and its forward's leaves, under this schedule."""
    if schedule.recomputes:
        return Recomputed
    splits, in_place = schedule.splits_backward, schedule.in_place
    return partial(Microbatch, splits_backward=splits, in_place=in_place)


def _sum_of(leaf: nn.Parameter, *halves: Tensor | None) -> Tensor:
    gradients = [half for half in halves if half is not None]
    return sum(gradients[1:], gradients[0]) if gradients else torch.zeros_like(leaf)


class JoinedGradients(Sequence[Tensor]):
    """Gradients, one tensor per weight, that lie together, and so are faster taken together."""

    @abstractmethod
    def norms(self) -> Tensor:
        """The norm of each of them [gradients], to the bit what torch makes of one alone."""

    @abstractmethod
    def multiply(self, factor: Tensor) -> None:
        """Multiplies all of them by this scalar, before anybody reads them."""


class Sums:
    """The sum of each replica's gradients, in `dtype`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._of_replicas: dict[int, list[Tensor]] = {}

    def add(self, replica: int, gradients: Sequence[Tensor]) -> None:
        """Adds a microbatch's gradients. The first ones become the sum itself."""
        if replica not in self._of_replicas:
            self._of_replicas[replica] = _cast(gradients, self._dtype)
            return
        totals = iter(self._of_replicas[replica])
        for piece in pieces(gradients):
            torch._foreach_add_([*islice(totals, len(piece))], _cast(piece, self._dtype))

    def take(self) -> Sequence[Tensor]:
        """Returns the sum over all replicas, and begins anew."""
        replicas, self._of_replicas = self._of_replicas, {}
        # In a fixed order, so that a run repeats to the bit.
        total = replicas.pop(0)
        for replica in sorted(replicas):
            torch._foreach_add_(total, replicas[replica])
        return total


def _cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The tensors in this dtype: copies, unless they have it.

    Few kernels copy all of them on a GPU, where `to`, and a sum of lists of two dtypes, would take
    one for each.
    """
    in_dtype = [t if t.dtype == dtype else torch.empty_like(t, dtype=dtype) for t in tensors]
    pairs = [(copy, t) for copy, t in zip(in_dtype, tensors, strict=True) if copy is not t]
    if pairs:  # torch takes no empty lists
        torch._foreach_copy_([copy for copy, _ in pairs], [t for _, t in pairs])
    return in_dtype
