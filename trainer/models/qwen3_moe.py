"""Qwen3-MoE: grouped-query attention with norms of queries and keys, experts in every layer.

With a free head size, as in Hugging Face's Qwen3MoeForCausalLM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from trainer.base.errors import BadInput
from trainer.base.ranges import Few, NonNegative, Rows
from trainer.models.attention import Attention
from trainer.models.balance import AuxiliaryLoss, Bias, NoBalance
from trainer.models.decoder import Decoder, LayerSize
from trainer.models.experts import Experts, MixtureOfExperts, Router
from trainer.models.layers import Layer, RMSNorm
from trainer.models.recipe import Pretrained

BALANCES: Mapping[str, Callable[[float, int], NoBalance]] = {
    "none": NoBalance,
    "loss": AuxiliaryLoss,
    "bias": Bias,
}


@dataclass(frozen=True, kw_only=True)
class Qwen3Moe(Decoder):
    """The recipe of a model; it allocates no weights."""

    head_size: Rows
    num_experts: Few
    experts_per_token: Few
    intermediate_size: Rows
    router: Literal["matrix", "vector"]
    balance: Literal["none", "loss", "bias"]
    balance_coefficient: NonNegative

    def __post_init__(self) -> None:
        """Raises BadInput for sizes that do not go together."""
        super().__post_init__()
        if self.head_size % 2:
            raise BadInput("model.head_size", self.head_size, "must be even")
        for key in ("hidden_size", "intermediate_size"):
            if getattr(self, key) % 8:  # rows of 16 bytes, which torch's grouped products need
                raise BadInput(f"model.{key}", getattr(self, key), "must be a multiple of 8")
        if self.experts_per_token > self.num_experts:
            allowed = f"must not exceed num_experts={self.num_experts}"
            raise BadInput("model.experts_per_token", self.experts_per_token, allowed)

    @property
    def rotary_size(self) -> int:
        """Whole heads are rotated."""
        return self.head_size

    @property
    def not_exported(self) -> str | None:
        """Why transformers cannot hold this model; None if they can."""
        return self._balance().not_exported

    def layer(self, index: int) -> nn.Module:
        """Attention and a mixture of experts."""
        norm = partial(RMSNorm, eps=self.rms_norm_eps)
        heads = self.num_heads, self.num_kv_heads, self.head_size
        return Layer(self.norm, Attention(self.hidden_size, *heads, norm), self._mixture())

    def layer_size(self, index: int) -> LayerSize:
        """All layers are equal."""
        d, q = self.hidden_size, self.num_heads * self.head_size
        attention = 2 * d * q + 2 * d * self.num_kv_heads * self.head_size
        expert, router = 3 * d * self.intermediate_size, self.num_experts * d
        biases = sum(bias.numel() for bias in self._balance().parameters())
        return LayerSize(
            matrices=attention + router + self.experts_per_token * expert,
            vectors=2 * d + 2 * self.head_size + biases,
            attention=q,
            idle=(self.num_experts - self.experts_per_token) * expert,
        )

    def pretrained(self, weights: Mapping[str, Tensor]) -> Pretrained:
        """As Qwen3MoeForCausalLM, which joins the gate and up matrices of an expert."""
        config = {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "head_dim": self.head_size,
            "num_experts": self.num_experts,
            "num_experts_per_tok": self.experts_per_token,
            "moe_intermediate_size": self.intermediate_size,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            **self.shared_config(),
        }
        return Pretrained(config, joined(weights))

    def _mixture(self) -> MixtureOfExperts:
        n, d = self.num_experts, self.hidden_size
        return MixtureOfExperts(
            Router(d, n, self.router),
            Experts(n, d, self.intermediate_size),
            self._balance(),
            self.experts_per_token,
        )

    def _balance(self) -> NoBalance:
        return BALANCES[self.balance](self.balance_coefficient, self.num_experts)


def joined(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with each pair of gate and up stacks as one stack, as transformers has them."""
    found = {}
    for name, weight in weights.items():
        experts, _, part = name.rpartition(".experts.")
        if part == "gate_proj":
            up = weights[f"{experts}.experts.up_proj"]
            found[f"{experts}.experts.gate_up_proj"] = torch.cat((weight, up), 1)
        elif part != "up_proj":
            found[name] = weight
    return found
