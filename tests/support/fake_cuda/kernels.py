"""What CUDA would do for an operation of ATen: how many kernels, a wait of the host, an error."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

AT_ONCE, CHUNK, CHUNKS = 30, 65_536, 320
"""Weights, entries of a chunk, and chunks that one kernel of a foreach operation takes."""
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
    if not base.startswith("_foreach"):
        return 1
    lists = _lists(args)
    number = len(lists[0])
    if not _is_fast(base, lists):
        return number
    chunks = sum(-(-tensor.numel() // CHUNK) for tensor in lists[0])
    return max(1, -(-number // AT_ONCE), -(-chunks // CHUNKS))


def _is_fast(base: str, lists: Sequence[Sequence[Tensor]]) -> bool:
    """Whether a foreach operation takes its lists as one: else it loops over them."""
    may_mix_dtypes = base == "_foreach_copy_"
    return all(
        len(other) == len(lists[0])
        and all(map(_are_alike, lists[0], other, [may_mix_dtypes] * len(other)))
        for other in lists[1:]
    ) and all(tensor.is_contiguous() for tensor in chain.from_iterable(lists))


def _are_alike(one: Tensor, other: Tensor, may_mix_dtypes: bool) -> bool:
    return one.shape == other.shape and (may_mix_dtypes or one.dtype == other.dtype)


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
