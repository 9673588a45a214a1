"""Dense Llama (SmolLM2): grouped-query attention, RoPE, RMSNorm, SwiGLU, tied embeddings.

Parameters have the names of Hugging Face's LlamaForCausalLM, whatever the number of stages.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.ranges import Rows
from pipegap.trainer.models.decoder import (
    DEFAULTS,
    KEYS,
    Decoder,
    LayerSize,
    Pretrained,
    size_of_heads,
)
from pipegap.trainer.models.layers import Attention, Layer, SwiGLU

LLAMA_KEYS = {"intermediate_size": "intermediate_size", **KEYS}
LLAMA_DEFAULTS = {
    **DEFAULTS,
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": lambda config: config["num_attention_heads"],
    "head_dim": size_of_heads,
    "mlp_bias": False,
}


@dataclass(frozen=True, kw_only=True)
class Llama(Decoder):
    """The recipe of a model; it allocates no weights."""

    intermediate_size: Rows

    def __post_init__(self) -> None:
        """Raises BadInput for sizes that do not divide each other."""
        if self.hidden_size % (2 * self.num_heads):
            allowed = f"must divide hidden_size={self.hidden_size} into heads of an even size"
            raise BadInput("model.num_heads", self.num_heads, allowed)
        super().__post_init__()

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def rotary_size(self) -> int:
        """Whole heads are rotated."""
        return self.head_size

    def layer(self, index: int) -> nn.Module:
        """Attention and SwiGLU."""
        heads = self.num_heads, self.num_kv_heads, self.head_size
        mlp = SwiGLU(self.hidden_size, self.intermediate_size)
        return Layer(self.norm, Attention(self.hidden_size, *heads), mlp)

    def layer_size(self, index: int) -> LayerSize:
        """All layers are equal."""
        d, kv = self.hidden_size, self.num_kv_heads * self.head_size
        matrices = 2 * d * d + 2 * d * kv + 3 * d * self.intermediate_size
        return LayerSize(matrices, vectors=2 * d, attention=d)

    def pretrained(self, weights: Mapping[str, Tensor]) -> Pretrained:
        """The model as LlamaForCausalLM, whose names the weights have already."""
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "head_dim": self.head_size,
            "mlp_bias": False,
            **self.shared_config(LLAMA_KEYS),
        }
        return Pretrained(config, dict(weights), LLAMA_DEFAULTS, LLAMA_KEYS, self.tied_names)
