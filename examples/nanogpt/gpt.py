"""The model of modded-nanogpt's track 3: normed queries and keys, squared ReLU, capped logits.

The equations are those of train_gpt_simple.py at 04447b4 (github.com/KellerJordan/modded-nanogpt,
records/track_3_optimization). Weights are fp32 and products bf16 under the loop's autocast; there
the embedding is bf16 too.
"""

from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD_WIDTH = 128
ATTENTION_SCALE = 0.12
BASE = 1024.0  # of the rotary frequencies, of which the lower half are 0
CAP = 15.0  # of a logit, in absolute value


class GPT(nn.Module):
    """Tokens [rows, length] to logits [rows, length, vocabulary]."""

    def __init__(self, vocabulary: int, layers: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary)
        self.first_norm, self.last_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.apply(_initialise)
        for block in self.blocks:
            nn.init.zeros_(block.attention.out.weight)
            nn.init.zeros_(block.out.weight)
        nn.init.zeros_(self.head.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, capped smoothly at ±CAP."""
        x = self.blocks(self.first_norm(self.embedding(tokens)))
        logits = self.head(self.last_norm(x)).float()
        return CAP * logits * (logits.square() + CAP**2).rsqrt()


def _initialise(module: nn.Module) -> None:
    """Matrices with a variance of 0.33 over their columns, biases 0; embeddings are torch's."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=sqrt(0.33 / module.in_features))
        nn.init.zeros_(module.bias)


class Block(nn.Module):
    """Attention and a feed-forward part of four times the width, each behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Attention(width)
        self.into, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states to hidden states, [rows, length, width]."""
        x = x + self.attention(self.norm1(x))
        return x + self.out(self.into(self.norm2(x)).relu().square())


class Attention(nn.Module):
    """Causal attention, whose queries and keys are normed and then rotated."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states to what is added to them, [rows, length, width]."""
        q, k, v = (
            part(x).unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        q, k = (rotated(F.rms_norm(part, (HEAD_WIDTH,))) for part in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=ATTENTION_SCALE)
        return self.out(y.transpose(1, 2).flatten(2))


def rotated(
    x: Tensor,  # [rows, heads, length, width of a head]
) -> Tensor:
    """Both halves of each head turned by position times frequency; half of the pairs stay."""
    length, width = x.shape[-2:]
    turning = BASE ** -torch.linspace(0, 1, width // 4, device=x.device)
    frequencies = torch.cat([turning, torch.zeros_like(turning)])
    angle = torch.outer(torch.arange(length, device=x.device, dtype=torch.float32), frequencies)
    first, second = x.float().chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    turned = torch.cat([first * cos + second * sin, second * cos - first * sin], -1)
    return turned.type_as(x)
