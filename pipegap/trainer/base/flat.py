"""Tensors that lie one after another in few vectors: arithmetic on all of them is a few calls.

Entry by entry it gives the same numbers, to the last bit. Also copies and exchanges of the content
of a loop's weights, sharded or not.
"""

import gc
import sys
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from math import prod
from operator import add
from typing import Any, TypeGuard, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

T = TypeVar("T")
ALIGNED = 64
"""A part begins at a multiple of so many entries: libraries choose their kernels by alignment."""
LARGEST = 2**27
"""Entries of a vector, unless one tensor has more: what an optimizer computes on the way is as
large as the vector, and a GPU's memory is short."""


class Vector:
    """How tensors of `shapes` lie in a vector, one after another; they have `numbers` in a list."""

    def __init__(self, numbers: Sequence[int], shapes: Sequence[torch.Size]) -> None:
        self.numbers = numbers
        sizes = [prod(shape) for shape in shapes]
        self._gaps = [-size % ALIGNED for size in sizes[:-1]] + [0]
        ends = list(accumulate(map(add, sizes, self._gaps)))
        self.starts, self.size = [0, *ends[:-1]], ends[-1]
        strides = [torch.empty(shape, device="meta").stride() for shape in shapes]
        self._places = list(zip(shapes, strides, self.starts, strict=True))

    def parts(self, whole: Tensor) -> list[Tensor]:
        """The tensors that lie in the vector `whole`, as views."""
        first = whole.storage_offset()
        return [whole.as_strided(shape, by, first + start) for shape, by, start in self._places]

    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """A new vector with a copy of each tensor, and zeros between them."""
        if any(self._gaps):
            zeros = tensors[0].new_zeros(max(self._gaps))
            gaps = [zeros[:gap] for gap in self._gaps]
            tensors = [entries for pair in zip(tensors, gaps, strict=True) for entries in pair]
        return _flatten_dense_tensors(tensors) if len(tensors) > 1 else tensors[0].flatten().clone()

    def beneath(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """The vector that these tensors are parts of, itself; None if they lie otherwise."""
        first = tensors[0]
        begin, size = first.data_ptr(), first.itemsize
        if first.untyped_storage().nbytes() // size - first.storage_offset() < self.size:
            return None
        if [t.data_ptr() - begin for t in tensors] != [start * size for start in self.starts]:
            return None
        return first.as_strided((self.size,), (1,))

    def whole(self, tensors: Sequence[Tensor]) -> Tensor:
        """These tensors as one vector: their own memory where they lie so, else a copy."""
        whole = self.beneath(tensors)
        return self.joined(tensors) if whole is None else whole


class Layout:
    """Where tensors of `shapes` lie: those with one key in a few of `vectors`, in order."""

    def __init__(self, shapes: Sequence[torch.Size], keys: Sequence[Hashable]) -> None:
        members = list(_members(shapes, keys))
        self.vectors = [Vector(numbers, [shapes[i] for i in numbers]) for numbers in members]
        self._place = torch.tensor([i for numbers in members for i in numbers]).argsort()
        self._starts = [torch.tensor(vector.starts) for vector in self.vectors]

    def parts(self, wholes: Sequence[Tensor]) -> list[Tensor]:
        """The tensors that lie in these vectors, as views."""
        parts: dict[int, Tensor] = {}
        for vector, whole in zip(self.vectors, wholes, strict=True):
            parts.update(zip(vector.numbers, vector.parts(whole), strict=True))
        return [parts[i] for i in range(len(parts))]

    def firsts(self, wholes: Sequence[Tensor]) -> Tensor:
        """The first entry of each tensor that lies in these vectors of the host, [tensors]."""
        pairs = zip(wholes, self._starts, strict=True)
        return torch.cat([whole.index_select(0, at) for whole, at in pairs])[self._place]


def _members(shapes: Sequence[torch.Size], keys: Sequence[Hashable]) -> Iterator[list[int]]:
    """Yields the numbers of the tensors of each vector: each lies in the first one with room."""
    for key in dict.fromkeys(keys):
        vectors: list[list[int]] = []
        for i in (i for i, of in enumerate(keys) if of == key):
            room = (v for v in vectors if sum(prod(shapes[j]) for j in (*v, i)) <= LARGEST)
            members = next(room, None)
            if members is None:
                vectors.append(members := [])
            members.append(i)
        yield from vectors


class Flat(Sequence[Any]):
    """The tensors that lie in the vectors `wholes`: `parts`, or views made when they are needed."""

    def __init__(
        self, layout: Layout, wholes: list[Tensor], parts: Sequence[Tensor] | None = None
    ) -> None:
        self.layout, self.wholes = layout, wholes
        if parts is not None:
            self._parts = parts

    @cached_property
    def _parts(self) -> Sequence[Tensor]:
        return self.layout.parts(self.wholes)

    def __getitem__(self, index: Any) -> Any:
        return self._parts[index]

    def __len__(self) -> int:
        return sum(len(vector.numbers) for vector in self.layout.vectors)


def are_at_hand(tensors: Sequence[Tensor]) -> TypeGuard[Flat]:
    """Whether tensors lie in vectors whose numbers the host can read without a wait."""
    return isinstance(tensors, Flat) and not tensors.wholes[0].is_cuda


def wholes(*lists: Sequence[Tensor]) -> list[list[Tensor]]:
    """Each list in as few tensors as hold this rank's entries, of equal sizes in all lists."""
    flats = [tensors for tensors in lists if isinstance(tensors, Flat)]
    if len(flats) == len(lists) and len({id(flat.layout) for flat in flats}) == 1:
        return [flat.wholes for flat in flats]
    return [[local(tensor) for tensor in tensors] for tensors in lists]


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor (DTensor), in its memory; any other as it is.

    torch computes on no list that has both kinds, as tensor parallelism leaves them.
    """
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def cloned(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """A copy of each tensor, in few vectors where the tensors are."""
    if isinstance(tensors, Flat):
        return Flat(tensors.layout, [whole.clone() for whole in tensors.wholes])
    return [tensor.detach().clone() for tensor in tensors]


def chosen(items: Sequence[T], numbers: Iterable[int]) -> Sequence[T]:
    """The items with these numbers, which ascend; the list itself, if they are all of them."""
    indices = list(numbers)
    return items if len(indices) == len(items) else [items[i] for i in indices]


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
        torch._foreach_copy_(
            [local(into[i]) for i in numbers], [local(tensors[i]) for i in numbers]
        )


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
