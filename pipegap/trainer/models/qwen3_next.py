"""Qwen3-Next: Gated DeltaNet in most layers, gated softmax attention in every n-th one, and in
every layer experts beside a shared one. As in Hugging Face's Qwen3NextForCausalLM."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from annotated_types import Interval
from torch import Tensor, nn
from typing_extensions import override

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.ranges import Few, Rows
from pipegap.trainer.models.decoder import LayerSize
from pipegap.trainer.models.delta import FUSED_CHUNKS, FUSED_KEY_SIZE, GatedDeltaNet
from pipegap.trainer.models.experts import MixtureWithSharedExpert
from pipegap.trainer.models.layers import Attention, CentredRMSNorm, Layer, SigmoidGate, SwiGLU
from pipegap.trainer.models.qwen3_moe import MIXTURE_DEFAULTS, MIXTURE_KEYS, MixtureDecoder, joined
from pipegap.trainer.models.recipe import Pretrained

MIXER = ".self_attn."
"""What follows the layer in the name of each weight of attention or of a Gated DeltaNet."""
NEXT_KEYS = {
    "partial_rotary_factor": "partial_rotary_factor",
    "linear_num_key_heads": "num_key_heads",
    "linear_num_value_heads": "num_value_heads",
    "linear_key_head_dim": "key_head_size",
    "linear_value_head_dim": "value_head_size",
    "linear_conv_kernel_dim": "conv_size",
    "shared_expert_intermediate_size": "shared_intermediate_size",
    **MIXTURE_KEYS,
}


def layer_types(is_full: Iterable[bool]) -> list[str]:
    """Transformers' names of the layers."""
    return ["full_attention" if full else "linear_attention" for full in is_full]


def default_layers(config: Mapping[str, Any]) -> list[str]:
    """The layers where config.json does not list them."""
    every = config.get("full_attention_interval", 4)
    return layer_types((layer + 1) % every == 0 for layer in range(config["num_hidden_layers"]))


NEXT_DEFAULTS = {
    **MIXTURE_DEFAULTS,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "layer_types": default_layers,
}


@dataclass(frozen=True, kw_only=True)
class Qwen3Next(MixtureDecoder):
    """The recipe of a model; it allocates no weights."""

    full_attention_every: Few
    partial_rotary_factor: Annotated[float, Interval(gt=0, le=1)]
    num_key_heads: Rows
    num_value_heads: Rows
    key_head_size: Rows
    value_head_size: Rows
    conv_size: Few
    chunk_size: Few
    shared_intermediate_size: Rows
    fused_delta_rule: bool = False

    def __post_init__(self) -> None:
        """Raises BadInput for sizes that do not go together."""
        super().__post_init__()
        rotary_size = self.partial_rotary_factor * self.head_size
        if not rotary_size or rotary_size % 2:
            allowed = f"must make an even number of head_size={self.head_size}"
            raise BadInput("model.partial_rotary_factor", self.partial_rotary_factor, allowed)
        if self.num_value_heads % self.num_key_heads:
            allowed = f"must divide num_value_heads={self.num_value_heads}"
            raise BadInput("model.num_key_heads", self.num_key_heads, allowed)
        if self.fused_delta_rule and self.chunk_size not in FUSED_CHUNKS:
            allowed = f"must be one of {FUSED_CHUNKS} with model.fused_delta_rule=true"
            raise BadInput("model.chunk_size", self.chunk_size, allowed)
        if self.fused_delta_rule and self.key_head_size > FUSED_KEY_SIZE:
            allowed = f"must be at most {FUSED_KEY_SIZE} with model.fused_delta_rule=true"
            raise BadInput("model.key_head_size", self.key_head_size, allowed)

    @property
    def rotary_size(self) -> int:
        """A part of each head is rotated."""
        return int(self.partial_rotary_factor * self.head_size)

    def layer(self, index: int) -> nn.Module:
        """Attention or a Gated DeltaNet, and a mixture of experts with a shared one."""
        mixer = self._attention() if self._is_full(index) else self._delta_net()
        shared = SwiGLU(self.hidden_size, self.shared_intermediate_size)
        return Layer(self.norm, mixer, MixtureWithSharedExpert(*self.mixture_parts(), shared))

    def layer_size(self, index: int) -> LayerSize:
        """The size of a layer with attention, or of one with a Gated DeltaNet."""
        mixer = self._attention_size() if self._is_full(index) else self._delta_net_size()
        d, mixture = self.hidden_size, self.mixture_size()
        shared = 3 * d * self.shared_intermediate_size
        return mixer._replace(
            matrices=mixer.matrices + mixture.matrices + shared,
            vectors=mixer.vectors + mixture.vectors + 2 * d + d,  # norms, gate of the shared expert
            idle=mixture.idle,
        )

    @override
    def norm(self) -> nn.Module:
        """A norm of hidden states, with a weight around 0."""
        return CentredRMSNorm(self.hidden_size, self.rms_norm_eps)

    def pretrained(self, weights: Mapping[str, Tensor]) -> Pretrained:
        """The model as Qwen3NextForCausalLM, which joins matrices of the same hidden states."""
        config = {
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "layer_types": layer_types(map(self._is_full, range(self.num_layers))),
            **self.shared_config(NEXT_KEYS),
        }
        tensors, more_tokens = self._renamed(joined(weights)), (r"^mtp",)
        return Pretrained(config, tensors, NEXT_DEFAULTS, NEXT_KEYS, self.tied_names, more_tokens)

    def _is_full(self, index: int) -> bool:
        return (index + 1) % self.full_attention_every == 0

    def _attention(self) -> nn.Module:
        norm = partial(CentredRMSNorm, eps=self.rms_norm_eps)
        heads = self.num_heads, self.num_kv_heads, self.head_size
        return Attention(self.hidden_size, *heads, norm, SigmoidGate)

    def _delta_net(self) -> nn.Module:
        return GatedDeltaNet(
            self.hidden_size,
            num_key_heads=self.num_key_heads,
            num_value_heads=self.num_value_heads,
            key_head_size=self.key_head_size,
            value_head_size=self.value_head_size,
            conv_size=self.conv_size,
            chunk_size=self.chunk_size,
            fused=self.fused_delta_rule,
            eps=self.rms_norm_eps,
        )

    def _attention_size(self) -> LayerSize:
        d, q = self.hidden_size, self.num_heads * self.head_size
        matrices = 3 * d * q + 2 * d * self.num_kv_heads * self.head_size
        return LayerSize(matrices, vectors=2 * self.head_size, attention=q)

    def _delta_net_size(self) -> LayerSize:
        """Products with each head's state: reading it by k and q, decay, writing."""
        d, n = self.hidden_size, self.num_value_heads
        key, value = self.num_key_heads * self.key_head_size, n * self.value_head_size
        return LayerSize(
            matrices=d * (2 * key + 3 * value + 2 * n),
            vectors=self.conv_size * (2 * key + value) + 2 * n + self.value_head_size,
            attention=0,
            products=4 * n * self.key_head_size * self.value_head_size,
        )

    def _renamed(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        mixers: dict[str, dict[str, Tensor]] = {}
        for name, weight in weights.items():
            layer, _, part = name.partition(MIXER)
            (mixers.setdefault(layer, {}) if part else tensors)[part or name] = weight
        for layer, parts in mixers.items():
            if self._is_full(int(layer.rpartition(".")[2])):
                renamed, mixer = self._attention_tensors(parts), "self_attn"
            else:
                renamed, mixer = self._delta_net_tensors(parts), "linear_attn"
            tensors.update({f"{layer}.{mixer}.{part}": w for part, w in renamed.items()})
        return tensors

    def _attention_tensors(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        renamed, joins = dict(parts), ("q_proj.weight", "gate_proj.weight")
        renamed["q_proj.weight"] = by_head([renamed.pop(name) for name in joins], self.num_heads)
        return renamed

    def _delta_net_tensors(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        renamed = dict(parts)
        for letters in ("qkvz", "ba"):
            matrices = [renamed.pop(f"{letter}_proj.weight") for letter in letters]
            renamed[f"in_proj_{letters}.weight"] = by_head(matrices, self.num_key_heads)
        renamed["conv1d.weight"] = renamed["conv1d.weight"].unsqueeze(1)
        return renamed


def by_head(matrices: list[Tensor], num_heads: int) -> Tensor:
    """The rows of the first head of each matrix, then the rows of the second head, and so on."""
    return torch.cat([matrix.unflatten(0, (num_heads, -1)) for matrix in matrices], 1).flatten(0, 1)
