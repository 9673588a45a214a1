"""`DelayedSteps` trains by the equation with any optimizer of torch's kind, as Megatron's Muon is.

Megatron itself is in test_megatron_2bw.py; here something else has the inner optimizer."""

import copy
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.corrections.compensation import Taylor, WeightPrediction
from pipegap.trainer.corrections.error_feedback import AdaptiveErrorFeedback
from pipegap.trainer.megatron.optimizers import DelayedSteps

STEPS = 6


class Inner:
    """What `DelayedSteps` asks of an optimizer of Megatron's."""

    def __init__(self, optimizer: torch.optim.Optimizer, **config: Any) -> None:
        self.optimizer, self.config = optimizer, SimpleNamespace(**config)
        self.tp_group: Any = None
        self.init_state_fn = self.sharded_state_dict = lambda *_, **__: None

    def get_parameters(self) -> list[Any]:
        return [weight for group in self.optimizer.param_groups for weight in group["params"]]


MAKES = {
    "muon": partial(torch.optim.Muon, lr=0.1, weight_decay=0.1),
    "adamw": partial(torch.optim.AdamW, lr=0.1, weight_decay=0.1),
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
}


def gradients(model: nn.Module, t: int) -> None:
    model.zero_grad()
    x, y = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(t))
    nn.functional.mse_loss(model(x), y).backward()


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize("coefficient", [0.0, 1.0])
def test_steps_are_the_equation(make: Any, coefficient: float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4, bias=False)
    naive = copy.deepcopy(model)
    optimizer, plain = make(model.parameters()), make(naive.parameters())
    delayed = DelayedSteps(Inner(optimizer), coefficient)
    weight = naive.weight.data
    versions: list[Tensor] = [weight.clone()]
    earlier = torch.zeros(())
    for t in range(STEPS):
        if t == 3:  # in new objects, from a checkpoint that lacks nothing
            state, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model)
            model, optimizer = weights, make(weights.parameters())
            delayed = DelayedSteps(Inner(optimizer), coefficient)
            optimizer.load_state_dict(state)
        gradients(model, t)
        optimizer.step()
        weight.copy_(versions[max(0, t - 1)])
        gradients(naive, t)
        weight.copy_(versions[t])
        plain.step()
        update = versions[t] - weight
        versions.append(weight - coefficient * (update - (update if t == 0 else earlier)))
        earlier = update
        assert torch.equal(model.weight, versions[t]), "what the next batch reads"
        with delayed.newest():
            assert torch.equal(model.weight, versions[t + 1])
        assert torch.equal(model.weight, versions[t])


def test_a_checkpoint_without_a_delay_begins_anew() -> None:
    """With its weights, which were not late."""
    model = nn.Linear(4, 4, bias=False)
    optimizer = MAKES["adamw"](model.parameters())
    gradients(model, 0)
    optimizer.step()
    state, before = copy.deepcopy(optimizer.state_dict()), model.weight.detach().clone()
    late = MAKES["adamw"](model.parameters())
    delayed = DelayedSteps(Inner(late))
    late.load_state_dict(state)
    gradients(model, 1)
    optimizer.step()
    once = model.weight.detach().clone()
    model.weight.data.copy_(before)
    late.step()
    assert torch.equal(model.weight, before)
    with delayed.newest():
        torch.testing.assert_close(model.weight, once)


def test_what_cannot_be_is_refused() -> None:
    optimizer = MAKES["adamw"](nn.Linear(4, 4).parameters())
    for correction in (
        partial(WeightPrediction, horizon=1.0),
        partial(Taylor, coefficient=1.0, decay=0.0),
    ):
        with pytest.raises(BadInput, match=f"{correction.func.__name__}: must act on steps alone"):
            DelayedSteps(Inner(optimizer), correction=correction, num_updates=6)
    sharded = Inner(optimizer)
    sharded.tp_group = SimpleNamespace(size=lambda: 2)
    adaptive = partial(AdaptiveErrorFeedback, coefficient=1.0, decay=0.9)
    with pytest.raises(BadInput, match="must not compute a number from a whole weight"):
        DelayedSteps(sharded, correction=adaptive, num_updates=6)
    with pytest.raises(BadInput, match="optimizer_cpu_offload=True: must be False"):
        DelayedSteps(Inner(optimizer, optimizer_cpu_offload=True))
