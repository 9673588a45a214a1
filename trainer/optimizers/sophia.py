"""Sophia-G (arXiv 2305.14342): momentum divided by curvature, each entry clipped to ±1."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from trainer.base.ranges import Count, NonNegative, Positive
from trainer.optimizers.dropped import drops, of_a_kind
from trainer.optimizers.routing import Decay, Group, Parameters, decaying, entrywise


def sophia_update(
    momenta: Sequence[Tensor],  # m, each of its weight's shape
    curvatures: Sequence[Tensor],  # h, each of its weight's shape
    rho: float,
    eps: float,
) -> list[Tensor]:
    """Returns clip(m / max(rho h, eps), −1, 1), entry by entry, for each weight."""
    scale = torch._foreach_mul(list(curvatures), rho)
    torch._foreach_clamp_min_(scale, eps)
    update = list(torch._foreach_div(list(momenta), scale))
    torch._foreach_clamp_min_(update, -1.0)
    torch._foreach_clamp_max_(update, 1.0)
    return update


class Sophia(Optimizer):
    """W ← (1 − lr · weight_decay) W − lr · `sophia_update`.

    m is the running average of the gradients. h is the running average of the squares of the
    gradients that `observe` gets (see `Observer` in state.py): it estimates the diagonal of the
    Gauss-Newton matrix.
    """

    def __init__(
        self,
        groups: list[Group],
        *,
        lr: float,
        momentum: float,
        variance_decay: float,
        rho: float,
        eps: float,
        observe_every: int,
    ) -> None:
        self.observe_every = observe_every
        self._momentum, self._variance_decay = momentum, variance_decay
        self._rho, self._eps = rho, eps
        super().__init__(groups, {"lr": lr})

    def observe(self, gradients: Mapping[Tensor, Tensor]) -> None:
        """h ← variance_decay h + (1 − variance_decay) ĝ², ĝ against sampled labels."""
        for weight, gradient in gradients.items():
            curvature = self._state(weight)["curvature"]
            curvature.mul_(self._variance_decay)
            curvature.addcmul_(gradient, gradient, value=1 - self._variance_decay)

    @override
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            states = [self._state(weight) for weight in weights]
            momenta = [state["momentum"] for state in states]
            torch._foreach_lerp_(momenta, [w.grad for w in weights], 1 - self._momentum)
            curvatures = [state["curvature"] for state in states]
            update = sophia_update(momenta, curvatures, self._rho, self._eps)
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(weights, update, alpha=-group["lr"])

    def _state(self, weight: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[weight]
        if not state:
            state.update({key: torch.zeros_like(weight) for key in ("momentum", "curvature")})
        return state


@entrywise
@drops(2, of_a_kind)
def sophia(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    variance_decay: Decay,
    rho: Positive,
    observe_every: Count,
    eps: Positive,
    weight_decay: NonNegative,
) -> Optimizer:
    """Sophia-G for all weights; the curvature is observed every `observe_every` updates."""
    return Sophia(
        decaying(parameters, weight_decay),
        lr=lr,
        momentum=momentum,
        variance_decay=variance_decay,
        rho=rho,
        eps=eps,
        observe_every=observe_every,
    )
