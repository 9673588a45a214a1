"""What CUDA would do for an operation of ATen: how many kernels, a wait of the host, an error."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import is_non_overlapping_and_dense_or_false

AT_ONCE, AT_ONCE_WITH_NUMBERS = (110, 64, 48, 36, 30), 96
"""Tensors of a list that one kernel of a foreach or fused operation takes, by how many lists it
has, and if each tensor has a number of its own: what torch's ATen/native/cuda/MultiTensorApply.cuh
says of a CUDA before 13, where a kernel's arguments are 4 KB. From 13 on it takes seven times as
many."""
CHUNK, CHUNKS = 65_536, 320
"""Entries of a chunk, and the chunks that one kernel takes, as that file says."""
WAITS = {
    *("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "bincount"),
    *("_unique2", "unique_dim", "unique_consecutive", "_linalg_check_errors"),
    *("_linalg_eigh", "_linalg_svd", "repeat_interleave.Tensor"),
}
"""Operations in which the host waits for the device."""
REFUSED: Mapping[str, Callable[[Sequence[Any]], bool]] = {
    "cumsum": lambda args: args[0].is_floating_point(),
    "histc": lambda args: True,
    "kthvalue": lambda args: True,
    "median.dim": lambda args: True,
    "put_": lambda args: True,
    "bincount": lambda args: len(args) > 1 and args[1] is not None,
    "nll_loss2d_forward": lambda args: True,
    "nll_loss2d_backward": lambda args: True,
    "scatter_reduce": lambda args: "prod" in args,
    "scatter_reduce_": lambda args: "prod" in args,
}
"""Operations → when they raise on CUDA under `torch.use_deterministic_algorithms(True)`: those of
its documentation that a language model might use."""
NO_KERNEL = {
    *("view", "_unsafe_view", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze"),
    *("slice", "select", "detach", "alias", "split", "split_with_sizes", "unbind", "as_strided"),
    *("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "unflatten"),
    *("reshape", "chunk", "_reshape_alias", "lift_fresh", "_local_scalar_dense", "lift"),
    *("is_same_size", "set_", "sym_size", "diagonal", "narrow", "view_as", "unfold", "squeeze_"),
}


def names(function: OpOverload) -> tuple[str, str]:
    """The name of an operation without and with its overload, e.g. `add` and `add.Tensor`."""
    base = function._schema.name.split("::")[-1]
    overload = function._overloadname
    return base, base if overload == "default" else f"{base}.{overload}"


def is_refused(function: OpOverload, args: Sequence[Any]) -> bool:
    return any(name in REFUSED and REFUSED[name](args) for name in {*names(function)})


def is_mixed(function: OpOverload, args: Sequence[Any]) -> bool:
    """Whether a foreach operation raises since its tensors are on several devices, which fake
    tensors do not see. Numbers, tensors without a dimension, may be on the CPU."""
    base, _ = names(function)
    if not base.startswith("_foreach") or base == "_foreach_copy_":
        return False
    devices = ({x.device.type for x in at if x.dim()} for at in zip(*_lists(args), strict=False))
    return any(len(of_one) > 1 for of_one in devices)


def _lists(args: Sequence[Any]) -> list[Sequence[Tensor]]:
    """The arguments that are lists of tensors."""
    lists = (arg for arg in args if isinstance(arg, list | tuple) and arg)
    return [arg for arg in lists if isinstance(arg[0], Tensor)]


def wait(function: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> str:
    """Why the host waits for the device in this operation; empty if it does not."""
    base, full = names(function)
    if base in WAITS or full in WAITS:
        return base
    if base == "_foreach_copy_":
        target, source = args[0][0], args[1][0]
    elif base in ("_to_copy", "copy_"):
        source, target = (args[1], args[0]) if base == "copy_" else (args[0], out)
    else:
        return ""
    is_free = kwargs.get("non_blocking") or (base != "_to_copy" and len(args) > 2 and args[2])
    ways = source.device.type, target.device.type
    if is_free or ways not in (("cuda", "cpu"), ("cpu", "cuda")):
        return ""
    if ways == ("cpu", "cuda") and not source.dim() + target.dim():
        return ""  # a number travels in the arguments of a kernel
    return "{} to {}".format(*ways)


def launches(base: str, args: Sequence[Any]) -> int:
    """Kernels of an operation on the GPU."""
    if base in NO_KERNEL:
        return 0
    if not base.startswith(("_foreach", "_fused_adam", "_fused_sgd")):
        return 1
    lists = _lists(args)
    if base.startswith("_foreach") and not _is_fast(base, lists):
        return len(lists[0])
    if base == "_foreach_norm":  # zeros, the sums of chunks, and the sums of these
        return 2 + _multi_tensor_apply(lists[0], AT_ONCE[0])
    # Not among them are the steps of a fused operation, which have no dimension.
    depth = sum(tensors[0].shape == lists[0][0].shape for tensors in lists)
    depth += not base.endswith("_")  # the list of the results
    has_numbers = any(isinstance(x, list) and x and isinstance(x[0], float | int) for x in args)
    at_once = AT_ONCE_WITH_NUMBERS if depth == 1 and has_numbers else AT_ONCE[depth - 1]
    return _multi_tensor_apply(lists[0], at_once)


def _multi_tensor_apply(tensors: Sequence[Tensor], at_once: int) -> int:
    """Kernels of a foreach operation, each with as many tensors and chunks as fit.

    A tensor whose chunks do not fit goes on in the next kernel.
    """
    kernels = num_tensors = num_chunks = 0
    for tensor in tensors:
        chunks = -(-tensor.numel() // CHUNK)
        num_tensors += chunks > 0
        while chunks:
            of_kernel = min(chunks, CHUNKS - num_chunks)
            chunks, num_chunks = chunks - of_kernel, num_chunks + of_kernel
            if num_chunks == CHUNKS or (num_tensors == at_once and not chunks):
                kernels, num_tensors, num_chunks = kernels + 1, int(chunks > 0), 0
    return kernels + (num_chunks > 0)


def _is_fast(base: str, lists: Sequence[Sequence[Tensor]]) -> bool:
    """Whether a foreach operation takes its lists as one: else it loops over them.

    As `check_fast_path_restrictions` says in torch's ATen/native/ForeachUtils.h.
    """
    first = lists[0][0]
    dtypes = [{tensor.dtype for tensor in tensors} for tensors in lists]
    return (
        all(len(of_list) == 1 for of_list in dtypes)
        and (base == "_foreach_copy_" or all(of_list == {first.dtype} for of_list in dtypes))
        and all(tensor.device == first.device for tensor in chain.from_iterable(lists))
        and all(map(is_non_overlapping_and_dense_or_false, chain.from_iterable(lists)))
        and all(len({*map(_strides, tensors)}) == 1 for tensors in zip(*lists, strict=False))
        and len({*map(len, lists)}) == 1
    )


def _strides(tensor: Tensor) -> tuple[tuple[int, int], ...]:
    """Size and stride of each dimension, but for the strides of those with one entry."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple((size, stride if size > 1 else 0) for size, stride in pairs)


def attention(
    query: Tensor,  # [batch, heads, length, size]
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """What CUDA chooses under deterministic algorithms: flash attention for half precision, else
    the efficient one, which knows no grouped heads, else products and a softmax."""
    aten = torch.ops.aten
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    is_grouped = key.shape[1] != query.shape[1]
    if query.is_cuda and query.dtype == torch.float32 and not is_grouped:
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, None, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale
        )[0]
    if is_grouped:
        times = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(times, 1) for x in (key, value))
    return aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale
    )[0]
