"""A stage as users wrap it: sharded, replicated, cut, checkpointed, compiled, with two tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from tests.support import toy
from tests.support.torch_pipeline import batch


def blocks(module: nn.Module) -> list[nn.Module]:
    return [block for block in module.modules() if isinstance(block, toy.Block)]


def fsdp(module: nn.Module, mesh: DeviceMesh, **options: Any) -> nn.Module:
    for block in blocks(module):
        fully_shard(block, mesh=mesh["data"], **options)
    return fully_shard(module, mesh=mesh["data"], **options)


def ddp(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(module, process_group=mesh["data"].get_group())


def tensor_parallel(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Blocks are cut; norms, embedding and head stay whole on both ranks."""
    for block in blocks(module):
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, mesh["tensor"], plan)
    return module


def both(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return fsdp(tensor_parallel(module, mesh), mesh)


def checkpointed(module: nn.Module, _: DeviceMesh, **options: Any) -> nn.Module:
    for block in blocks(module):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, **options)
    return module


def compiled(module: nn.Module, _: DeviceMesh, **options: Any) -> nn.Module:
    module.compile(**options)
    return module


def autocast(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    module.forward = torch.autocast(mesh.device_type, torch.bfloat16)(module.forward)
    return module


class TwoTensors(nn.Module):
    """A stage that takes and gives two tensors, and a keyword argument for each row."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, side: Tensor | None = None, *, gain: Tensor) -> Any:
        gain = gain[:, None, None]
        if side is None:
            h = self.inner(x)
            return h, torch.tanh(h * gain)
        return self.inner(x + gain * side)


@dataclass(frozen=True)
class Setting:
    """How stages are wrapped, on how many ranks per stage, and whether `data` divides batches."""

    wrap: Callable[[nn.Module, DeviceMesh], nn.Module]
    data: int = 1
    tensor: int = 1
    keywords: Mapping[str, Tensor] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64


GAIN = {"gain": torch.linspace(0.5, 1.5, len(batch(0)[0]), dtype=torch.float64)}

MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

SAVE_PRODUCTS = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])

SETTINGS: dict[str, Setting] = {
    "fsdp2": Setting(fsdp, data=2),
    "fsdp2, bf16": Setting(partial(fsdp, mp_policy=MIXED), data=2, dtype=torch.float32),
    "ddp": Setting(ddp, data=2),
    "tp": Setting(tensor_parallel, tensor=2),
    "fsdp2 and tp": Setting(both, data=2, tensor=2),
    "autocast": Setting(autocast, dtype=torch.float32),
    "full checkpointing": Setting(checkpointed),
    "selective checkpointing": Setting(partial(checkpointed, context_fn=SAVE_PRODUCTS)),
    "aot_eager": Setting(partial(compiled, backend="aot_eager")),
    "inductor": Setting(compiled),
    "two tensors": Setting(lambda module, _: TwoTensors(module), keywords=GAIN),
}
