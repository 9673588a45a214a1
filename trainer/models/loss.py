"""The training loss."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over all tokens, in nats per token, computed in fp32 or wider.

    `logits` are [batch, seq, vocab], `targets` [batch, seq].
    """
    logits = logits.flatten(0, 1)
    wide = logits if logits.dtype.itemsize >= 4 else logits.float()
    return F.cross_entropy(wide, targets.flatten())
