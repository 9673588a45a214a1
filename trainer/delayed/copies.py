"""Copies and exchanges the content of a loop's weights, sharded or not."""

import sys
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pipegap.trainer.base.flat import local


def by_device(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Return the numbers of the tensors, grouped by device or mesh and dtype."""
    groups: dict[object, list[int]] = {}
    for i, tensor in enumerate(tensors):
        key = (tensor.device, tensor.dtype, getattr(tensor, "device_mesh", None))
        groups.setdefault(key, []).append(i)
    return list(groups.values())


@torch.no_grad()
def copy_into(into: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copy the content of each tensor into its counterpart, which is sharded alike."""
    for numbers in by_device(into):
        torch._foreach_copy_(
            [local(into[i]) for i in numbers], [local(tensors[i]) for i in numbers]
        )


@torch.no_grad()
def exchange(weights: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Exchanges the content of each tensor with that of its counterpart, which is sharded alike.

    Memory changes hands where it is nobody else's. Where it may be, as in a part of a flat vector,
    numbers are copied.
    """
    for weight, other in zip(_plain(weights), _plain(others), strict=True):
        if type(weight) in (Tensor, nn.Parameter) and _is_whole(weight):
            weight.data, other.data = other.data, weight.data
        else:
            content = weight.clone()
            weight.copy_(other)
            other.copy_(content)


def _plain(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """The tensors themselves, or what a wrapper as DTensor has inside."""
    for tensor in tensors:
        if is_traceable_wrapper_subclass(tensor):
            inside = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
            yield from _plain([part for part in inside if isinstance(part, Tensor)])
        else:
            yield tensor


def _is_whole(tensor: Tensor) -> bool:
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize


def reshard_all() -> None:
    """Makes every FSDP2 module of this process gather its weights anew at its next forward.

    After a forward without a backward, as evaluations are, a module may keep the whole weights that
    it gathered: what is written to its shards would not be seen.
    """
    with_state = sys.modules.get("torch.distributed._composable_state")  # else there is no module
    for module in list(with_state._module_state_mapping) if with_state else ():
        if hasattr(module, "reshard"):
            module.reshard()
