"""What Schedule2BW uses of torch beside its documented names is still there."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from trainer.executors.gradients import Diverged
from trainer.torch_pipelining import Schedule2BW
from trainer.torch_pipelining.private import PRIVATE_NAMES

CPU = torch.device("cpu")


@pytest.fixture
def alone() -> Iterator[None]:
    """This process is the only rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_no_private_name_of_torch_moved() -> None:
    module = nn.Linear(2, 2)
    stage = PipelineStage(module, 0, 1, CPU)
    objects = {
        "schedule": Schedule1F1B(stage, 1, nn.MSELoss()),
        "stage": stage,
        "module": module,
        "weight": module.weight,
    }
    moved = [
        f"{of}.{name} of torch {torch.__version__}"
        for of, names in PRIVATE_NAMES.items()
        for name in names
        if not any(hasattr(objects[of], either) for either in name.split(" or "))
    ]
    assert not moved


@pytest.mark.usefixtures("alone")
def test_an_update_that_is_not_finite_is_not_made() -> None:
    module = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def update() -> None:
        schedule.clip_grad_norm_(1.0)
        optimizer.step()

    schedule = Schedule2BW(
        PipelineStage(module, 0, 1, CPU), 1, nn.MSELoss(), update=update, error_feedback=1.0
    )
    schedule.step(torch.ones(1, 2), target=torch.ones(1, 2))
    with pytest.raises(RuntimeError, match="belongs into update"):
        schedule.clip_grad_norm_(1.0)
    with pytest.raises(RuntimeError, match="inside `with"):
        schedule.eval(torch.ones(1, 2), target=torch.ones(1, 2))
    schedule.step(torch.full((1, 2), float("inf")), target=torch.ones(1, 2))
    weights = [weight.detach().clone() for weight in module.parameters()]
    with pytest.raises(Diverged, match="batch 1"), schedule.drained():
        pass
    assert all(map(torch.equal, module.parameters(), weights))
