"""Sums of gradients over microbatches, in the dtype of the master."""

from collections.abc import Sequence

import torch
from torch import Tensor

AT_ONCE = 16
"""Gradients that are copied to another dtype before they are added: so the copies stay small."""


def in_dtypes_of(others: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors, each in the dtype of its other: a copy only where its own is another one."""
    result = [
        tensor if tensor.dtype == other.dtype else torch.empty_like(tensor, dtype=other.dtype)
        for tensor, other in zip(tensors, others, strict=True)
    ]
    pairs = zip(result, tensors, strict=True)
    copied = [(copy, tensor) for copy, tensor in pairs if copy is not tensor]
    if copied:
        torch._foreach_copy_([copy for copy, _ in copied], [tensor for _, tensor in copied])
    return result


def add(sums: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Adds each tensor to its sum, in place.

    Torch adds lists of two dtypes tensor by tensor, but copies them at once: on a GPU the time goes
    by the number of calls.
    """
    for start in range(0, len(sums), AT_ONCE):
        some = list(sums[start : start + AT_ONCE])
        torch._foreach_add_(some, in_dtypes_of(some, tensors[start : start + AT_ONCE]))
