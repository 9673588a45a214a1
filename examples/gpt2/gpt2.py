"""GPT-2 in one file: learned positions, LayerNorm, biases, GELU, tied embeddings.

Radford et al. 2019; weights have the names of Hugging Face's GPT2LMHeadModel.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.ranges import Few, Rows
from pipegap.trainer.base.resources import stream
from pipegap.trainer.models.decoder import Pretrained, Split, balanced
from pipegap.trainer.models.layers import normal
from pipegap.trainer.optimizers.routing import Kind, kinds

STD = 0.02
KEYS = {
    "vocab_size": "vocab_size",
    "n_embd": "hidden_size",
    "n_layer": "num_layers",
    "n_head": "num_heads",
    "n_positions": "num_positions",
}
"""Keys of a config.json, and the fields that they are."""
FIXED = {
    "n_inner": None,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
}
"""What a config.json must say besides; transformers takes the same for a key that is absent."""
SIZES = {"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
TIED = {"lm_head.weight": "transformer.wte.weight"}
BUFFERS = (r"\.attn\.(masked_)?bias$",)
"""Names in older files that are no weights."""


@dataclass(frozen=True, kw_only=True)
class GPT2:
    """Implements trainer.models.decoder.Recipe; the fields are the keys of `model`."""

    vocab_size: Rows
    hidden_size: Rows
    num_layers: Few
    num_heads: Few
    num_positions: Rows = 1024
    activation_checkpointing: bool = False

    @property
    def not_exported(self) -> str | None:
        """Nothing is in the way."""
        return None

    @property
    def num_parameters(self) -> int:
        """A layer has 12 d² in matrices and 13 d in norms and biases."""
        d = self.hidden_size
        layers = self.num_layers * (12 * d * d + 13 * d)
        return (self.vocab_size + self.num_positions) * d + layers + 2 * d

    @property
    def num_active_parameters(self) -> int:
        """All of them."""
        return self.num_parameters

    def flops_per_token(self, seq_len: int) -> float:
        """6 per parameter but those of positions, which are looked up; 12 d T for attention."""
        products = self.num_parameters - self.num_positions * self.hidden_size
        return 6 * products + 12 * self.num_layers * self.hidden_size * seq_len

    def split(self, num_stages: int, seq_len: int) -> Split:
        """Layers by their work; the head counts for the last stage."""
        if num_stages > self.num_layers:
            allowed = f"must not exceed model.num_layers={self.num_layers}"
            raise BadInput("pipeline.num_stages", num_stages, allowed)
        if seq_len > self.num_positions:
            allowed = f"must not exceed model.num_positions={self.num_positions}"
            raise BadInput("seq_len", seq_len, allowed)
        layers = (self._layer_work(seq_len),) * self.num_layers
        return balanced(layers, num_stages, self._head_work)

    def work(self, split: Split, seq_len: int) -> list[float]:
        """What `split` balances, by stage."""
        by_stage = [float(len(layers) * self._layer_work(seq_len)) for layers in split]
        return [*by_stage[:-1], by_stage[-1] + self._head_work]

    def _layer_work(self, seq_len: int) -> int:
        return 12 * self.hidden_size**2 + self.hidden_size * seq_len

    @property
    def _head_work(self) -> int:
        return self.vocab_size * self.hidden_size

    def stage(self, index: int, split: Split) -> nn.Module:
        """A consecutive part; of several, the first and the last both hold the embedding."""
        return GPT2Stage(self, split[index], index == 0, index == len(split) - 1)

    @torch.no_grad()
    def initialise(self, module: nn.Module, seed: int) -> None:
        """Normal(0, 0.02), less where a layer adds to the hidden states; biases 0, norms 1."""
        for name, weight in module.named_parameters():
            if weight.ndim == 1:
                weight.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                # c_proj adds to the hidden states, twice in a layer.
                std = STD / sqrt(2 * self.num_layers) if "c_proj" in name else STD
                weight.copy_(normal(weight.shape, std, stream(seed, "init", name)))

    def kinds(self, module: nn.Module) -> dict[str, Kind]:
        """By the module that a weight belongs to."""
        return kinds(module)

    def pretrained(self, weights: Mapping[str, Tensor]) -> Pretrained:
        """The weights of a GPT2LMHeadModel, which holds the matrices of layers transposed."""
        config = {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            **{hf_key: getattr(self, ours) for hf_key, ours in KEYS.items()},
            **FIXED,
            "bos_token_id": None,
            "eos_token_id": None,
        }
        # Its layers are Conv1D, which hold [in, out] where nn.Linear holds [out, in].
        tensors = {
            f"transformer.{name}": w.T if ".c_" in name and w.ndim == 2 else w
            for name, w in weights.items()
        }
        return Pretrained(config, tensors, {**FIXED, **SIZES}, KEYS, TIED, BUFFERS)


class GPT2Stage(nn.Module):
    """Tokens or hidden states [batch, seq(, hidden)] to hidden states or logits."""

    def __init__(self, recipe: GPT2, layers: range, is_first: bool, is_last: bool) -> None:
        super().__init__()
        d = recipe.hidden_size
        self.is_first, self.is_last = is_first, is_last
        if is_first or is_last:
            self.wte = nn.Embedding(recipe.vocab_size, d)
        if is_first:
            self.wpe = nn.Embedding(recipe.num_positions, d)
        self.h = nn.ModuleDict({str(layer): Block(d, recipe.num_heads) for layer in layers})
        if is_last:
            self.ln_f = nn.LayerNorm(d)

    def forward(self, x: Tensor) -> Tensor:
        """Runs this part of the model."""
        if self.is_first:
            x = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        for block in self.h.values():
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight) if self.is_last else x


class Block(nn.Module):
    """Attention and a feed-forward part, each behind a norm."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.attn = Attention(hidden_size, num_heads)
        self.mlp = nn.ModuleDict(
            {
                "c_fc": nn.Linear(hidden_size, 4 * hidden_size),
                "c_proj": nn.Linear(4 * hidden_size, hidden_size),
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states to hidden states."""
        x = x + self.attn(self.ln_1(x))
        hidden = F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.mlp["c_proj"](hidden)


class Attention(nn.Module):
    """Causal softmax attention."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.c_attn = nn.Linear(hidden_size, 3 * hidden_size)
        self.c_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states to what is added to them."""
        q, k, v = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in self.c_attn(x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))
