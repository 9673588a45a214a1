"""Qwen3-MoE, and the experts in every layer that Qwen3-Next has too.

Qwen3-MoE has grouped-query attention with norms of queries and keys, and heads of any size, as in
Hugging Face's Qwen3MoeForCausalLM.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.ranges import Few, NonNegative, Rows
from pipegap.trainer.models.decoder import DEFAULTS, KEYS, Decoder, LayerSize, size_of_heads
from pipegap.trainer.models.experts import (
    AuxiliaryLoss,
    Bias,
    Experts,
    MixtureOfExperts,
    NoBalance,
    Router,
)
from pipegap.trainer.models.layers import Attention, Layer, RMSNorm
from pipegap.trainer.models.recipe import Pretrained

BALANCES: Mapping[str, Callable[[float, int], NoBalance]] = {
    "none": NoBalance,
    "loss": AuxiliaryLoss,
    "bias": Bias,
}
MIXTURE_KEYS = {
    "head_dim": "head_size",
    "num_experts": "num_experts",
    "num_experts_per_tok": "experts_per_token",
    "moe_intermediate_size": "intermediate_size",
    **KEYS,
}
MIXTURE_DEFAULTS = {
    **DEFAULTS,
    "vocab_size": 151936,
    "hidden_size": 2048,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
MOE_DEFAULTS = {
    **MIXTURE_DEFAULTS,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": size_of_heads,
    "num_experts": lambda config: config.get("num_local_experts", 128),
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": False,
    "use_sliding_window": False,
}


@dataclass(frozen=True, kw_only=True)
class MixtureDecoder(Decoder):
    """The recipe of a decoder with experts in every layer and attention heads of any size."""

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
        for key in ("hidden_size", "intermediate_size"):
            if getattr(self, key) % 8:  # rows of 16 bytes, which torch's grouped products need
                raise BadInput(f"model.{key}", getattr(self, key), "must be a multiple of 8")
        if self.experts_per_token > self.num_experts:
            allowed = f"must not exceed num_experts={self.num_experts}"
            raise BadInput("model.experts_per_token", self.experts_per_token, allowed)

    @property
    def not_exported(self) -> str | None:
        """Why transformers cannot hold this model; None if they can."""
        return self._balance().not_exported

    def mixture_parts(self) -> tuple[Router, Experts, NoBalance, int]:
        """The arguments of `MixtureOfExperts`: router, experts, balance, experts per token."""
        n, d = self.num_experts, self.hidden_size
        experts = Experts(n, d, self.intermediate_size)
        return Router(d, n, self.router), experts, self._balance(), self.experts_per_token

    def mixture_size(self) -> LayerSize:
        """Parameters and work of a mixture of these parts."""
        expert = 3 * self.hidden_size * self.intermediate_size
        router = self.num_experts * self.hidden_size
        return LayerSize(
            matrices=router + self.experts_per_token * expert,
            vectors=sum(bias.numel() for bias in self._balance().parameters()),
            attention=0,
            idle=(self.num_experts - self.experts_per_token) * expert,
        )

    @override
    def shared_config(self, keys: Mapping[str, str]) -> dict[str, Any]:
        return {
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            **super().shared_config(keys),
        }

    def _balance(self) -> NoBalance:
        return BALANCES[self.balance](self.balance_coefficient, self.num_experts)


def joined(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with each pair of gate and up stacks as one stack, as transformers has them."""
    tensors = {}
    for name, weight in weights.items():
        experts, _, part = name.rpartition(".experts.")
        if part == "gate_proj":
            up = weights[f"{experts}.experts.up_proj"]
            tensors[f"{experts}.experts.gate_up_proj"] = torch.cat((weight, up), 1)
        elif part != "up_proj":
            tensors[name] = weight
    return tensors


@dataclass(frozen=True, kw_only=True)
class Qwen3Moe(MixtureDecoder):
    """The recipe of a model; it allocates no weights."""

    def __post_init__(self) -> None:
        """Raises BadInput for sizes that do not go together."""
        super().__post_init__()
        if self.head_size % 2:
            raise BadInput("model.head_size", self.head_size, "must be even")

    @property
    def rotary_size(self) -> int:
        """Whole heads are rotated."""
        return self.head_size

    def layer(self, index: int) -> nn.Module:
        """Attention and a mixture of experts."""
        norm = partial(RMSNorm, eps=self.rms_norm_eps)
        heads = self.num_heads, self.num_kv_heads, self.head_size
        attention = Attention(self.hidden_size, *heads, norm)
        return Layer(self.norm, attention, MixtureOfExperts(*self.mixture_parts()))

    def layer_size(self, index: int) -> LayerSize:
        """All layers are equal."""
        d, q, mixture = self.hidden_size, self.num_heads * self.head_size, self.mixture_size()
        return LayerSize(
            matrices=2 * d * q + 2 * d * self.num_kv_heads * self.head_size + mixture.matrices,
            vectors=2 * d + 2 * self.head_size + mixture.vectors,
            attention=q,
            idle=mixture.idle,
        )

    def pretrained(self, weights: Mapping[str, Tensor]) -> Pretrained:
        """The model as Qwen3MoeForCausalLM, which joins the gate and up matrices of an expert."""
        config = {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "use_sliding_window": False,
            **self.shared_config(MIXTURE_KEYS),
        }
        return Pretrained(config, joined(weights), MOE_DEFAULTS, MIXTURE_KEYS, tied=self.tied_names)
