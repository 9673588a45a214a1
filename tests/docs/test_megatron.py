"""The hook of docs/megatron.md trains by the equation: in NVIDIA's Muon where it is installed, and
in an optimizer that calls hooks as its does."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from examples.megatron.delayed_hook import DelayedHook

STEPS, DECAY = 6, 0.1


class Hooked(torch.optim.Optimizer):
    """SGD with momentum. Its decay is the first change of a weight, the hook's the last one."""

    def __init__(self, weights: Any, lr: float, weight_decay: float, hook: Any = None) -> None:
        super().__init__(weights, {"lr": lr, "weight_decay": weight_decay})
        self.hook = hook

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """By each weight's gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                momentum.lerp_(weight.grad, 0.5)
                state = self.hook and self.hook.pre_weight_update_inplace(weight, momentum)
                weight.add_(momentum, alpha=-group["lr"])
                if self.hook:
                    self.hook.post_weight_update_inplace(weight, state)


def nvidia(weights: Any, lr: float, weight_decay: float, hook: Any = None) -> torch.optim.Optimizer:
    """Its Muon. The releases on PyPI have no hooks up to 0.3.0: install it from its repository."""
    pytest.importorskip("emerging_optimizers.weight_update_hooks")
    from emerging_optimizers.orthogonalized_optimizers.muon import Muon

    options: dict[str, Any] = {"momentum": 0.95, "weight_update_hook": hook}
    made: torch.optim.Optimizer = Muon(weights, lr=lr, weight_decay=weight_decay, **options)
    return made


def gradients(model: nn.Module, t: int) -> None:
    model.zero_grad()
    x, y = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(t))
    nn.functional.mse_loss(model(x), y).backward()


@pytest.mark.parametrize("make", [Hooked, nvidia])
@pytest.mark.parametrize("coefficient", [0.0, 1.0])
def test_the_hook_is_the_equation(make: Callable[..., Any], coefficient: float) -> None:
    torch.manual_seed(0)
    hook, model = DelayedHook(coefficient), nn.Linear(4, 4, bias=False)
    naive = copy.deepcopy(model)
    optimizer = make([model.weight], 0.1, DECAY, hook)
    hook.attach(optimizer)
    own, weight = make([naive.weight], 0.1, DECAY), naive.weight.data
    versions: list[Tensor] = [weight.clone()]
    earlier = None
    for t in range(STEPS):
        gradients(model, t)
        optimizer.step()
        weight.copy_(versions[max(0, t - 1)])
        gradients(naive, t)
        weight.copy_(versions[t])
        own.step()
        change = versions[t] - weight
        versions.append(weight - coefficient * (change - (change if t == 0 else earlier)))
        earlier = change
        assert torch.equal(model.weight, versions[t]), "what the next batch reads"
        with hook.newest():
            assert torch.equal(model.weight, versions[t + 1])
        assert torch.equal(model.weight, versions[t])
