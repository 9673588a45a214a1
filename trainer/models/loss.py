"""The training loss."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from trainer.models.layers import wide


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over all tokens, in nats per token, computed in fp32 or wider.

    `logits` are [batch, seq, vocab], `targets` [batch, seq].
    """
    logits = logits.flatten(0, 1)
    return F.cross_entropy(wide(logits), targets.flatten())
