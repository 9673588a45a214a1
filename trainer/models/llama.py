"""Dense Llama (SmolLM2): grouped-query attention, RoPE, RMSNorm, SwiGLU, tied embeddings.

Parameters have the names of Hugging Face's LlamaForCausalLM, whatever the number of stages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer.base.errors import BadInput
from trainer.base.randomness import stream
from trainer.base.ranges import Few, Positive, Rows
from trainer.models.split import Split, balanced


@dataclass(frozen=True, kw_only=True)
class Llama:
    """The recipe of a model; it allocates no weights."""

    vocab_size: Rows
    hidden_size: Rows
    num_layers: Few
    num_heads: Rows
    num_kv_heads: Rows
    intermediate_size: Rows
    rope_theta: Positive
    rms_norm_eps: Positive
    initializer_range: Positive
    tied_embeddings: bool
    activation_checkpointing: bool

    def __post_init__(self) -> None:
        """Raises BadInput for sizes that do not divide each other."""
        if self.hidden_size % (2 * self.num_heads):
            allowed = f"must divide hidden_size={self.hidden_size} into heads of an even size"
            raise BadInput("model.num_heads", self.num_heads, allowed)
        if self.num_heads % self.num_kv_heads:
            allowed = f"must divide num_heads={self.num_heads}"
            raise BadInput("model.num_kv_heads", self.num_kv_heads, allowed)

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model; tied weights count once."""
        d, kv = self.hidden_size, self.num_kv_heads * self.head_size
        layer = 2 * d * d + 2 * d * kv + 3 * d * self.intermediate_size + 2 * d
        embeddings = self.vocab_size * d * (1 if self.tied_embeddings else 2)
        return self.num_layers * layer + embeddings + d

    def flops_per_token(self, seq_len: int) -> float:
        """FLOPs of forward and backward: 6 per parameter and 12 L d T for attention, with L layers
        of width d and T = `seq_len` (PaLM, appendix B).
        """
        return 6 * self.num_parameters + 12 * self.num_layers * self.hidden_size * seq_len

    def split(self, num_stages: int, seq_len: int) -> Split:
        """The layers of each stage, balanced by counted work.

        Work is the multiplications of the matrices and of causal attention; the embedding's lookup
        has none. Raises BadInput for more stages than layers.
        """
        if num_stages > self.num_layers:
            allowed = f"must not exceed model.num_layers={self.num_layers}"
            raise BadInput("pipeline.num_stages", num_stages, allowed)
        d, kv = self.hidden_size, self.num_kv_heads * self.head_size
        layer = 2 * d * d + 2 * d * kv + 3 * d * self.intermediate_size + d * seq_len
        return balanced(self.num_layers, num_stages, head=self.vocab_size * d / layer)

    def stage(self, index: int, split: Split) -> nn.Module:
        """The stage numbered `index`; its weights are undefined before `initialise`."""
        return LlamaStage(self, index, split)

    @torch.no_grad()
    def initialise(self, module: nn.Module, seed: int) -> None:
        """Normal(0, initializer_range), norms 1, as published for SmolLM2.

        Each parameter is drawn on the CPU from a stream of its own name, so that its values depend
        on neither the stages nor the device.
        """
        for name, parameter in module.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                normal = torch.empty(parameter.shape).normal_(
                    0, self.initializer_range, generator=stream(seed, "init", name)
                )
                parameter.copy_(normal)


class LlamaStage(nn.Module):
    """A consecutive part of the model.

    The first stage takes tokens [batch, seq], others hidden states [batch, seq, hidden]; the last
    one gives logits [batch, seq, vocab]. With tied embeddings the last of several stages has a copy
    of the embedding, under the same name.
    """

    def __init__(self, recipe: Llama, index: int, split: Split) -> None:
        super().__init__()
        self._recipe = recipe
        self.is_first, self.is_last = index == 0, index == len(split) - 1
        parts: dict[str, nn.Module] = {}
        if self.is_first or (self.is_last and recipe.tied_embeddings):
            parts["embed_tokens"] = nn.Embedding(recipe.vocab_size, recipe.hidden_size)
        parts["layers"] = nn.ModuleDict({str(layer): Layer(recipe) for layer in split[index]})
        if self.is_last:
            parts["norm"] = RMSNorm(recipe.hidden_size, recipe.rms_norm_eps)
            if not recipe.tied_embeddings:
                self.lm_head = nn.Linear(recipe.hidden_size, recipe.vocab_size, bias=False)
        self.model = nn.ModuleDict(parts)

    def forward(self, x: Tensor) -> Tensor:
        """Runs this stage's part of the model on `x`."""
        if self.is_first:
            x = self.model["embed_tokens"](x)
        rotation = self._rotation(x)
        for layer in self.model["layers"].children():
            if self._recipe.activation_checkpointing and torch.is_grad_enabled():
                x = checkpoint(layer, x, *rotation, use_reentrant=False)
            else:
                x = layer(x, *rotation)
        return self._head(self.model["norm"](x)) if self.is_last else x

    def _head(self, x: Tensor) -> Tensor:
        if self._recipe.tied_embeddings:
            embedding = self.model["embed_tokens"]
            assert isinstance(embedding, nn.Embedding)
            return F.linear(x, embedding.weight)
        return self.lm_head(x)

    def _rotation(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of RoPE, [seq, head], made in fp32."""
        size = self._recipe.head_size
        exponents = torch.arange(0, size, 2, device=x.device, dtype=torch.float32) / size
        positions = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
        angles = torch.outer(positions, self._recipe.rope_theta**-exponents)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), -1).to(x.dtype), torch.cat((-sin, sin), -1).to(x.dtype)


class Layer(nn.Module):
    """Attention and SwiGLU, each behind a norm and added to the residual stream."""

    def __init__(self, recipe: Llama) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(recipe.hidden_size, recipe.rms_norm_eps)
        self.self_attn = Attention(recipe)
        self.post_attention_layernorm = RMSNorm(recipe.hidden_size, recipe.rms_norm_eps)
        self.mlp = SwiGLU(recipe)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[batch, seq, hidden] to the same."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, recipe: Llama) -> None:
        super().__init__()
        d, kv = recipe.hidden_size, recipe.num_kv_heads * recipe.head_size
        self._head_size, self._is_grouped = recipe.head_size, kv != d
        self.q_proj = nn.Linear(d, d, bias=False)
        self.k_proj = nn.Linear(d, kv, bias=False)
        self.v_proj = nn.Linear(d, kv, bias=False)
        self.o_proj = nn.Linear(d, d, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[batch, seq, hidden] to the same."""
        q = rotate(self._heads(self.q_proj(x)), cos, sin)
        k = rotate(self._heads(self.k_proj(x)), cos, sin)
        v = self._heads(self.v_proj(x))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self._is_grouped)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self._head_size)).transpose(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE (arXiv 2104.09864) on [batch, heads, seq, head]: pairs are (i, i + head / 2).

    `sin` is negative in its first half, so rolling by half a head gives the rotation by 90°.
    """
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


class RMSNorm(nn.Module):
    """x / rms(x) · weight (arXiv 1910.07467), normalised in fp32 or wider.

    Written by hand: it takes half the time of torch's, which has no fused kernel on the CPU.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self._eps = nn.Parameter(torch.empty(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """[…, size] to the same."""
        wide = x if x.dtype.itemsize >= 4 else x.float()
        mean_square = torch.linalg.vecdot(wide, wide).unsqueeze(-1) / x.shape[-1]
        return (wide * torch.rsqrt(mean_square + self._eps)).to(x.dtype) * self.weight


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)) (arXiv 2002.05202)."""

    def __init__(self, recipe: Llama) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(recipe.hidden_size, recipe.intermediate_size, bias=False)
        self.up_proj = nn.Linear(recipe.hidden_size, recipe.intermediate_size, bias=False)
        self.down_proj = nn.Linear(recipe.intermediate_size, recipe.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, hidden] to the same."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
