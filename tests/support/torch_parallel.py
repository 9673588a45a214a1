"""The toy pipeline with two replicas per stage, wrapped as users wrap their stages."""

import copy
import pickle
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.support import toy
from tests.support.torch_pipeline import CPU, TIGHT, T, adamw, batch, modules
from trainer.ranks.groups import Heartbeat, joined
from trainer.torch_pipelining import Schedule2BW

Wrap = Callable[[nn.Module, DeviceMesh], nn.Module]
MICROBATCHES = 4


def fsdp(module: nn.Module, mesh: DeviceMesh, **options: MixedPrecisionPolicy) -> nn.Module:
    for block in module:  # type: ignore[attr-defined]
        if isinstance(block, toy.Block):
            fully_shard(block, mesh=mesh, **options)
    return fully_shard(module, mesh=mesh, **options)


def ddp(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(module, process_group=mesh.get_group())


def tensor_parallel(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Blocks are cut; norms, embedding and head stay whole on both ranks."""
    for block in module:  # type: ignore[attr-defined]
        if isinstance(block, toy.Block):
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(block, mesh, plan)
    return module


def checkpointed(module: nn.Module, _: DeviceMesh) -> nn.Module:
    for block in module:  # type: ignore[attr-defined]
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return module


def compiled(module: nn.Module, _: DeviceMesh) -> nn.Module:
    module.compile(backend="aot_eager")
    return module


WRAPS: dict[str, Wrap] = {
    "fsdp2": fsdp,
    "ddp": ddp,
    "tp": tensor_parallel,
    "activation checkpointing": checkpointed,
    "compile": compiled,
}
DIVIDE_THE_BATCH = ("fsdp2", "ddp")


def trained(name: str, mesh: DeviceMesh) -> dict[str, Tensor]:
    """The weights of this rank's stage after T batches."""
    rank, replica = mesh.get_local_rank("pipeline"), mesh.get_local_rank("replica")
    plain = modules(2)[rank]
    versions = [plain, copy.deepcopy(plain), copy.deepcopy(plain)]
    newest, *twins = (WRAPS[name](module, mesh["replica"]) for module in versions)
    stage = PipelineStage(newest, rank, 2, CPU, group=mesh.get_group("pipeline"))
    optimizer = adamw(newest)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, toy.lr_factor)

    def update() -> None:
        schedule.clip_grad_norm_(TIGHT)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    schedule = Schedule2BW(
        stage, MICROBATCHES, toy.loss, update=update, error_feedback=1.0, twins=twins
    )
    for t in range(T):
        x, y = batch(t)
        if name in DIVIDE_THE_BATCH:
            x, y = (_part(rows, replica) for rows in (x, y))
        schedule.step(*((x,) if rank == 0 else ()), target=y if rank == 1 else None)
    with schedule.drained():
        named = [(n.removeprefix("module."), w.detach()) for n, w in newest.named_parameters()]
        return {n: w.full_tensor() if isinstance(w, DTensor) else w for n, w in named}


def _part(rows: Tensor, replica: int) -> Tensor:
    """Half of the rows of each microbatch."""
    return torch.cat([part.chunk(2)[replica] for part in rows.chunk(MICROBATCHES)])


def as_rank(
    store: dist.Store,
    heartbeat: Heartbeat,
    send: Callable[[object], None],
    names: Sequence[str],
) -> None:
    torch.set_num_threads(1)
    with joined(store, heartbeat.rank, 4, 1, CPU, heartbeat, 60):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipeline", "replica"))
        for name in names:
            send((name, heartbeat.rank, pickle.dumps(trained(name, mesh))))
