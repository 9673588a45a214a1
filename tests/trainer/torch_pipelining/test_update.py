"""What counts as an update of the user's, on sharded weights."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from trainer.delayed.arm import correction_node
from trainer.torch_pipelining.update import LateUpdate


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_a_step_that_no_version_of_a_weight_shows(one_rank: None, how: str) -> None:
    mesh = init_device_mesh("cpu", (1,))
    newest, *twins = (fully_shard(nn.Linear(2, 2), mesh=mesh) for _ in range(3))
    late = LateUpdate(newest, twins, correction_node(0, None), None)
    late.twins.start(0)
    twins[0](torch.ones(1, 2)).sum().backward()
    optimizer = torch.optim.AdamW(newest.parameters(), lr=0.1, **{how: True})
    versions = [weight._version for weight in newest.parameters()]
    late(0, optimizer.step)
    assert versions == [weight._version for weight in newest.parameters()]
    twins[1](torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match="made no optimizer step"):
        late(1, lambda: None)
