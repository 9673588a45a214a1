"""Qwen3-MoE: grouped-query attention with norms of queries and keys, experts in every layer.

With a free head size, as in Hugging Face's Qwen3MoeForCausalLM.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from trainer.base.errors import BadInput
from trainer.models.decoder import LayerSize
from trainer.models.experts import MixtureOfExperts
from trainer.models.layers import Attention, Layer, RMSNorm
from trainer.models.mixture import MixtureDecoder, joined
from trainer.models.recipe import Pretrained


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
            **self.shared_config(),
        }
        return Pretrained(config, joined(weights))
