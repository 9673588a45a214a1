"""Parts that every decoder has: norm, feed-forward part, and a layer made of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from trainer.models.initial import Streams


class Layer(nn.Module):
    """Attention and a feed-forward part, each behind a norm and added to the residual stream.

    Attention may be softmax or linear.
    """

    def __init__(self, norm: Callable[[], nn.Module], attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.input_layernorm = norm()
        self.self_attn = attention
        self.post_attention_layernorm = norm()
        self.mlp = mlp

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[batch, seq, hidden] to the same; `cos` and `sin` as in `attention.rotate`."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class RMSNorm(nn.Module):
    """x / rms(x) · weight (arXiv 1910.07467), normalised in fp32 or wider."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self._eps = nn.Parameter(torch.empty(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """[…, size] to the same."""
        return normalised(x, self._eps).to(x.dtype) * self.weight


class CentredRMSNorm(RMSNorm):
    """x / rms(x) · (1 + weight), computed in fp32 or wider; the weight starts at 0."""

    def initial(self, name: str, shape: torch.Size, std: float, streams: Streams) -> Tensor:
        """The factor is 1."""
        return torch.zeros(shape)

    @override
    def forward(self, x: Tensor) -> Tensor:
        return (normalised(x, self._eps) * (1 + wide(self.weight))).to(x.dtype)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)) (arXiv 2002.05202)."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[…, hidden] to the same."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def normalised(x: Tensor, eps: float) -> Tensor:
    """x / √(mean of x² + eps) over the last dimension, in fp32 or wider.

    Written by hand: it takes half the time of torch's, which has no fused kernel on the CPU.
    """
    x = wide(x)
    mean_square = torch.linalg.vecdot(x, x).unsqueeze(-1) / x.shape[-1]
    return x * torch.rsqrt(mean_square + eps)


def wide(x: Tensor) -> Tensor:
    """x in fp32, if its dtype is narrower."""
    return x if x.dtype.itemsize >= 4 else x.float()
