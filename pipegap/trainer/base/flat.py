"""Copies and exchanges of the content of lists of weights, sharded or not."""

import gc
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

T = TypeVar("T")
LARGEST = 2**27
"""Entries of the tensors that a foreach call gets at once where it makes temporary ones, unless one
tensor has more: those are as large, and a GPU's memory is short."""


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor (DTensor), in its memory; any other as it is.

    torch computes on no list that has both kinds, as tensor parallelism leaves them.
    """
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def local_parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return this rank's part of each tensor."""
    return [local(tensor) for tensor in tensors]


def cloned(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """A copy of each tensor; few kernels make all of them."""
    copies = [torch.empty_like(tensor) for tensor in tensors]
    copy_into(copies, tensors)
    return copies


def chosen(items: Sequence[T], numbers: Iterable[int]) -> Sequence[T]:
    """The items with these numbers, which ascend; the list itself, if they are all of them."""
    indices = list(numbers)
    return items if len(indices) == len(items) else [items[i] for i in indices]


def pieces(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the tensors in consecutive lists of at most `LARGEST` entries each."""
    piece: list[Tensor] = []
    for tensor in tensors:
        if piece and sum(t.numel() for t in piece) + tensor.numel() > LARGEST:
            yield piece
            piece = []
        piece.append(tensor)
    if piece:
        yield piece


def storage(tensor: Tensor) -> int:
    """What tensors that share memory have in common, also where there is no memory behind it."""
    return int(tensor.untyped_storage()._cdata)


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
        sources = local_parts(tensors[i] for i in numbers)
        torch._foreach_copy_(local_parts(into[i] for i in numbers), sources)


@torch.no_grad()
def exchange(weights: Sequence[Tensor], partners: Sequence[Tensor]) -> None:
    """Exchanges the content of each tensor with that of its counterpart, which is sharded alike.

    Memory changes hands where it is nobody else's; elsewhere numbers are copied.
    """
    for weight, partner in zip(_plain(weights), _plain(partners), strict=True):
        if type(weight) in (Tensor, nn.Parameter) and owns_memory(weight):
            weight.data, partner.data = partner.data, weight.data
        else:
            content = weight.clone()
            weight.copy_(partner)
            partner.copy_(content)


def _plain(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """The tensors themselves, or what a wrapper as DTensor has inside."""
    for tensor in tensors:
        if is_traceable_wrapper_subclass(tensor):
            inside = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
            yield from _plain([part for part in inside if isinstance(part, Tensor)])
        else:
            yield tensor


def owns_memory(tensor: Tensor) -> bool:
    """Whether no other tensor has a part of its memory, as the vectors do that an optimizer or a
    wrapper joins weights to."""
    is_whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize
    return is_whole and _num_holders(tensor) == _num_holders(torch.empty(1))


def _num_holders(tensor: Tensor) -> int:
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


class GatheredWeights:
    """The copies of weights that wrappers in this process made for a forward and may still keep.

    After a forward without a backward, as evaluations are, a module of FSDP keeps the whole weights
    that it gathered: what is written to its shards would not be seen. Autocast keeps its casts
    until its context ends.
    """

    def __init__(self) -> None:
        self._fsdp1: WeakSet[Any] | None = None

    def drop(self) -> None:
        """Makes each wrapper gather or cast its weights anew at its next forward."""
        torch.clear_autocast_cache()
        with_state = sys.modules.get("torch.distributed._composable_state")  # else no FSDP2
        for module in list(with_state._module_state_mapping) if with_state else ():
            if hasattr(module, "reshard"):
                module.reshard()
        if self._fsdp1 is None:
            self._fsdp1 = WeakSet(_fsdp1_modules())
        for module in self._fsdp1:
            handle = module._handle
            # `needs_unshard` is false too where weights are never sharded.
            if handle and handle.uses_sharded_strategy and not handle.needs_unshard():
                sys.modules["torch.distributed.fsdp._runtime_utils"]._reshard(module, handle, True)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy looks for modules of its own, since these may not exist in its process."""
        return GatheredWeights, ()


def _fsdp1_modules() -> Iterator[Any]:
    """Every FullyShardedDataParallel module of this process, of which torch has no list."""
    fsdp1 = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    if fsdp1 is None or not torch.distributed.is_initialized():
        return  # the walk below takes up to half a second
    for candidate in gc.get_objects():
        # Of the type: `isinstance` would ask lazy objects for their class, which loads modules.
        if issubclass(type(candidate), fsdp1.FullyShardedDataParallel):
            yield candidate
