"""How experts are kept equally busy, by terms that travel with the backward.

A term belongs to the gradient of the microbatch that made it. So versions, microbatches, replicas,
recomputation and checkpoints treat it as they treat every gradient.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from pipegap.trainer.models.initial import Streams
from pipegap.trainer.optimizers.routing import Kind


class NoBalance(nn.Module):
    """Does nothing; the interface of a balance, which acts in training mode only."""

    not_exported: ClassVar[str | None] = None
    """Why transformers cannot hold a model with it."""

    def __init__(self, coefficient: float, num_experts: int) -> None:
        super().__init__()
        self._coefficient, self._num_experts = coefficient, num_experts

    def scores(self, chances: Tensor) -> Tensor:
        """By what the experts of a token are chosen: router's chances, or changed ones.

        Both are [tokens, experts].
        """
        return chances

    def forward(self, out: Tensor, chances: Tensor, loads: Tensor) -> Tensor:
        """Returns `out`; its backward adds this balance's term to the gradient.

        `loads` has the number of (token, expert) pairs of each expert, int64 [experts].
        """
        return out


class AuxiliaryLoss(NoBalance):
    """Adds coefficient · E · Σ_e f_e P_e to the loss (Switch, arXiv 2101.03961, equation 4).

    P_e is the mean chance of expert e, and f_e its load per token, so that the sum over experts is
    the number of chosen ones. Both are means over a microbatch of one replica, and their product
    depends on it: m microbatches give another term than one. Each layer has its own term. The
    recorded losses do not contain it.
    """

    @override
    def forward(self, out: Tensor, chances: Tensor, loads: Tensor) -> Tensor:
        if not self.training:
            return out
        share = loads.to(chances.dtype) / len(chances)
        term = self._coefficient * self._num_experts * (share * chances.mean(0)).sum()
        return _WithLoss.apply(out, term)


class Bias(NoBalance):
    """Adds coefficient · b_e to the scores of expert e (DeepSeek-V3, arXiv 2412.19437).

    b counts steps of 1, up for an expert with less than the mean load of a batch and down for one
    with more. It is a weight, so that a delayed gradient belongs to the version that chose. Its
    gradient stands for load minus mean load; the rule that steps it takes the sign.
    """

    not_exported = "must not be bias: transformers has no such biases in this architecture"
    reads_master = True

    def __init__(self, coefficient: float, num_experts: int) -> None:
        super().__init__(coefficient, num_experts)
        self.bias = nn.Parameter(torch.empty(num_experts))

    def kind(self, name: str) -> Kind:
        """The biases have a rule of their own."""
        return "balance"

    def initial(self, name: str, shape: torch.Size, std: float, streams: Streams) -> Tensor:
        """No steps yet."""
        return torch.zeros(shape)

    @override
    def scores(self, chances: Tensor) -> Tensor:
        return chances.detach() + self._coefficient * self.bias.detach()

    @override
    def forward(self, out: Tensor, chances: Tensor, loads: Tensor) -> Tensor:
        if not self.training:
            return out
        wide = loads.to(self.bias.dtype)  # whole numbers, and a mean that is exact for 2^n experts
        return _WithGradient.apply(out, self.bias, wide - wide.sum() / self._num_experts)


class _WithLoss(torch.autograd.Function):
    """x; its backward adds `term`, a scalar, to whatever loss is made of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, term: Tensor) -> Tensor:
        ctx.save_for_backward(torch.ones_like(term))
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, *ctx.saved_tensors


class _WithGradient(torch.autograd.Function):
    """x; its backward gives `weight` the gradient `given`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, given: Tensor) -> Tensor:
        ctx.save_for_backward(given)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradient, *ctx.saved_tensors, None
