"""What counts as an update of the user's, on sharded weights."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage

from pipegap.trainer.delayed import DelayedOptimizer
from pipegap.trainer.delayed.arm import correction_node
from pipegap.trainer.torch_pipelining import Schedule2BW
from pipegap.trainer.torch_pipelining.late_update import LateUpdate


@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_a_step_that_no_version_of_a_weight_shows(one_rank: None, how: str) -> None:
    mesh = init_device_mesh("cpu", (1,))
    newest, *twins = (fully_shard(nn.Linear(2, 2), mesh=mesh) for _ in range(3))
    stage = PipelineStage(newest, 0, 1, torch.device("cpu"))
    late = LateUpdate(stage, twins, [], correction_node(0, None), None)
    late.versions.start(0)
    twins[0](torch.ones(1, 2)).sum().backward()
    optimizer = torch.optim.AdamW(newest.parameters(), lr=0.1, **{how: True})
    versions = [weight._version for weight in newest.parameters()]
    late(0, torch.ones(()), optimizer.step)
    assert versions == [weight._version for weight in newest.parameters()]
    twins[1](torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match="made no optimizer step"):
        late(1, torch.ones(()), lambda: None)


@pytest.mark.parametrize("evaluates", [False, True])
def test_an_evaluation_on_sharded_weights_changes_nothing(one_rank: None, evaluates: bool) -> None:
    """FSDP2 leaves a root's weights whole after a forward without a backward."""
    mesh, x = init_device_mesh("cpu", (1,)), torch.ones(1, 2)
    torch.manual_seed(0)
    plain = nn.Linear(2, 2)
    newest, *twins = (fully_shard(copy.deepcopy(plain), mesh=mesh) for _ in range(3))
    optimizer = torch.optim.SGD(newest.parameters(), lr=0.1)
    schedule = Schedule2BW(
        PipelineStage(newest, 0, 1, torch.device("cpu")),
        1,
        nn.MSELoss(),
        update=optimizer.step,
        error_feedback=1.0,
        twins=twins,
    )
    delayed = DelayedOptimizer(torch.optim.SGD(plain.parameters(), lr=0.1))
    for _ in range(4):
        if evaluates:
            with schedule.drained() as module, torch.no_grad():
                module(x)
        schedule.step(x, target=x)
        delayed.zero_grad()
        nn.functional.mse_loss(plain(x), x).backward()
        delayed.step()
    delayed.finish()
    with schedule.drained():
        pairs = zip(newest.parameters(), plain.parameters(), strict=True)
        assert all(torch.equal(mine.full_tensor(), right) for mine, right in pairs)
