"""Copies the content of a loop's weights, sharded or not."""

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.base.flat import local


def alike(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Return the numbers of the tensors, grouped by device or mesh and dtype."""
    groups: dict[object, list[int]] = {}
    for i, tensor in enumerate(tensors):
        key = (tensor.device, tensor.dtype, getattr(tensor, "device_mesh", None))
        groups.setdefault(key, []).append(i)
    return list(groups.values())


@torch.no_grad()
def copy_into(into: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copy the content of each tensor into its counterpart, which is sharded alike."""
    for numbers in alike(into):
        torch._foreach_copy_(
            [local(into[i]) for i in numbers], [local(tensors[i]) for i in numbers]
        )


def reshard_all() -> None:
    """Makes every FSDP2 module of this process gather its weights anew at its next forward.

    After a forward without a backward, as evaluations are, a module may keep the whole weights that
    it gathered: what is written to its shards would not be seen.
    """
    with_state = sys.modules.get("torch.distributed._composable_state")  # else there is no module
    for module in list(with_state._module_state_mapping) if with_state else ():
        if hasattr(module, "reshard"):
            module.reshard()
