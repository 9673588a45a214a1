"""Sharded weights, also beside plain ones: their content is what the loop's next forward reads."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from pipegap.trainer.delayed import DelayedOptimizer

X = torch.linspace(-1, 1, 8).view(4, 2)


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))


def sharded() -> nn.Module:
    """FSDP2; the last layer stays whole in its root."""
    model, mesh = module(), init_device_mesh("cpu", (1,))
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def mixed() -> nn.Module:
    """One layer's weight alone is a DTensor, as tensor parallelism makes some."""
    model, mesh = module(), init_device_mesh("cpu", (1,))
    model[0].weight = nn.Parameter(distribute_tensor(model[0].weight, mesh))
    model[0].forward = lambda x: nn.functional.linear(
        x, model[0].weight.full_tensor(), model[0].bias
    )
    return model


def trained(model: nn.Module, *, evaluates: bool) -> list[Tensor]:
    delayed = DelayedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False))
    for _ in range(5):
        if evaluates:
            with delayed.newest(), torch.no_grad():
                model(X)
        nn.functional.mse_loss(model(X), X.flip(0)).backward()
        delayed.step()
        delayed.zero_grad()
    delayed.finish()
    weights = [weight.detach() for weight in model.parameters()]
    return [w.full_tensor() if isinstance(w, DTensor) else w for w in weights]


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("make", [module, sharded, mixed])
@pytest.mark.parametrize("evaluates", [False, True])
def test_weights_are_trained_alike(make: Callable[[], nn.Module], evaluates: bool) -> None:
    for mine, right in zip(
        trained(make(), evaluates=evaluates), trained(module(), evaluates=False), strict=True
    ):
        assert torch.equal(mine, right)
