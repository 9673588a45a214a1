"""Sums of gradients over microbatches, in the dtype of the master."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.base.flat import Flat, alike

AT_ONCE = 16
"""Gradients that are copied to another dtype before they are added: so the copies stay small."""


def begun(masters: Flat, gradients: Sequence[Tensor]) -> list[Tensor]:
    """The sum of the first gradients alone, in the dtypes of the masters.

    Gradients in these dtypes become the sum themselves. Others are copied to where a step by
    vectors needs no further copy.
    """
    if all(g.dtype == master.dtype for g, master in zip(gradients, masters, strict=True)):
        return list(gradients)
    copies = alike(masters)
    torch._foreach_copy_(copies, list(gradients))
    return copies


def add(sums: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Adds each tensor to its sum, in place.

    Torch adds lists of two dtypes tensor by tensor, but copies them at once: on a GPU the time goes
    by the number of calls.
    """
    for start in range(0, len(sums), AT_ONCE):
        some, added = (list(of[start : start + AT_ONCE]) for of in (sums, tensors))
        if any(tensor.dtype != own.dtype for tensor, own in zip(added, some, strict=True)):
            copies = [torch.empty_like(own) for own in some]
            torch._foreach_copy_(copies, added)
            added = copies
        torch._foreach_add_(some, added)
