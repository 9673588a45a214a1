"""Decoders that are an embedding, layers and a head, and how they split themselves into stages."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.ranges import Few, Positive, Rows
from pipegap.trainer.models.layers import RMSNorm, initialise, rotation
from pipegap.trainer.models.loss import Output, Unprojected
from pipegap.trainer.models.recipe import Pretrained, Split, balanced
from pipegap.trainer.optimizers.routing import Kind, kinds

LOSS = 256
"""Multiplications of a forward that take as long as the loss of one logit, forward and backward: on
an H100 its 8 bytes take as long as the six FLOPs of 280 (sweeps/plan/devices.yaml)."""


KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "rope_theta": "rope_theta",
    "rms_norm_eps": "rms_norm_eps",
    "initializer_range": "initializer_range",
    "tie_word_embeddings": "tied_embeddings",
}
"""Keys of transformers' configs of all decoders, and the fields that they are."""
DEFAULTS = {
    "rope_theta": 1e4,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
}
"""What transformers takes for a key that config.json lacks, in all decoders."""


def size_of_heads(config: Mapping[str, Any]) -> Any:
    """The size of an attention head where config.json does not say it."""
    return config["hidden_size"] // config["num_attention_heads"]


class LayerSize(NamedTuple):
    """Parameters and work of one layer.

    `matrices` are the entries of the matrices that every token is multiplied by, `idle` those of
    the experts that one token does not visit, `vectors` all other parameters. `attention` is the
    width of softmax attention. `products` are multiplications per token that have no parameter.
    """

    matrices: int
    vectors: int
    attention: int
    idle: int = 0
    products: int = 0


@dataclass(frozen=True, kw_only=True)
class Decoder(ABC):
    """The recipe of a decoder: all of `Recipe` but its layers and its export."""

    vocab_size: Rows
    hidden_size: Rows
    num_layers: Few
    num_heads: Rows
    num_kv_heads: Rows
    rope_theta: Positive
    rms_norm_eps: Positive
    initializer_range: Positive
    tied_embeddings: bool
    activation_checkpointing: bool
    loss_chunk: Rows | None = None

    def __post_init__(self) -> None:
        """Raises BadInput for sizes that do not divide each other."""
        if self.num_heads % self.num_kv_heads:
            allowed = f"must divide num_heads={self.num_heads}"
            raise BadInput("model.num_kv_heads", self.num_kv_heads, allowed)

    @property
    @abstractmethod
    def rotary_size(self) -> int:
        """The width that rotary positions have in each head."""

    @abstractmethod
    def layer(self, index: int) -> nn.Module:
        """The layer numbered `index`, called with hidden states and RoPE's cosines and sines."""

    @abstractmethod
    def layer_size(self, index: int) -> LayerSize:
        """Parameters and work of the layer numbered `index`."""

    @abstractmethod
    def pretrained(self, weights: Mapping[str, Tensor]) -> Pretrained:
        """The model with these weights, all of them by name, as transformers store it."""

    @property
    def not_exported(self) -> str | None:
        """Why transformers cannot hold this model; None if they can."""
        return None

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model; tied weights count once."""
        return self.num_active_parameters + sum(size.idle for size in self._sizes())

    @property
    def num_active_parameters(self) -> int:
        """Parameters of the whole model without the experts that one token does not visit."""
        layers = sum(size.matrices + size.vectors for size in self._sizes())
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return layers + embeddings + self.hidden_size

    def flops_per_token(self, seq_len: int) -> float:
        """FLOPs of forward and backward: 6 per active parameter and per product without one, and
        12 w T for softmax attention of width w with T = `seq_len` (PaLM, appendix B). Looking up an
        embedding costs none."""
        looked_up = 0 if self.tied_embeddings else self.vocab_size * self.hidden_size
        attention = sum(size.attention for size in self._sizes())
        products = self.num_active_parameters - looked_up + sum(s.products for s in self._sizes())
        return 6 * products + 12 * attention * seq_len

    def split(self, num_stages: int, seq_len: int) -> Split:
        """The layers of each stage, balanced by counted work.

        Work counts multiplications: of the matrices, of causal attention, and without a parameter.
        The embedding's lookup has none. A loss that is fused with the head counts as
        LOSS more per logit. Raises BadInput for more stages than layers.
        """
        if num_stages > self.num_layers:
            allowed = f"must not exceed model.num_layers={self.num_layers}"
            raise BadInput("pipeline.num_stages", num_stages, allowed)
        return balanced(self._work(seq_len), num_stages, head=self._head_work)

    def work(self, split: Split, seq_len: int) -> list[float]:
        """The work of each stage: of its layers, and on the last stage of the head too."""
        by_layer = self._work(seq_len)
        by_stage = [float(sum(by_layer[layer] for layer in layers)) for layers in split]
        return [*by_stage[:-1], by_stage[-1] + self._head_work]

    def stage(self, index: int, split: Split) -> nn.Module:
        """The stage numbered `index`; its weights are undefined before `initialise`."""
        return DecoderStage(self, index, split)

    def initialise(self, module: nn.Module, seed: int) -> None:
        """Normal(0, initializer_range) and norms 1, as published for SmolLM2 and Qwen3, unless a
        module says otherwise."""
        initialise(module, self.initializer_range, seed)

    def kinds(self, module: nn.Module) -> dict[str, Kind]:
        """The kind of every weight of a stage, by name."""
        return kinds(module)

    def shared_config(self, keys: Mapping[str, str]) -> dict[str, Any]:
        """The fields under transformers' names, and what its configs of all decoders fix."""
        return {
            **{hf_key: getattr(self, ours) for hf_key, ours in keys.items()},
            "hidden_act": "silu",
            "attention_bias": False,
            "bos_token_id": None,  # the tokenizer knows them: transformers would assume others
            "eos_token_id": None,
            "dtype": "float32",
        }

    @property
    def tied_names(self) -> dict[str, str]:
        """The name under which a checkpoint may hold a tied embedding once more."""
        return {"lm_head.weight": "model.embed_tokens.weight"} if self.tied_embeddings else {}

    def norm(self) -> nn.Module:
        """A norm of hidden states."""
        return RMSNorm(self.hidden_size, self.rms_norm_eps)

    @property
    def _head_work(self) -> int:
        return self.vocab_size * (self.hidden_size + (LOSS if self.loss_chunk else 0))

    def _work(self, seq_len: int) -> tuple[int, ...]:
        return tuple(s.matrices + s.products + s.attention * seq_len for s in self._sizes())

    def _sizes(self) -> list[LayerSize]:
        return [self.layer_size(index) for index in range(self.num_layers)]


class DecoderStage(nn.Module):
    """A consecutive part of a decoder.

    The first stage takes tokens [batch, seq], others hidden states [batch, seq, hidden]; the last
    one gives logits [batch, seq, vocab], or with `loss_chunk` what makes them. With tied embeddings
    the last of several stages has a copy of the embedding, under the same name.
    """

    def __init__(self, recipe: Decoder, index: int, split: Split) -> None:
        super().__init__()
        self._recipe = recipe
        self.is_first, self.is_last = index == 0, index == len(split) - 1
        parts: dict[str, nn.Module] = {}
        if self.is_first or (self.is_last and recipe.tied_embeddings):
            # The constructor draws values: on the meta device that takes all of torch._dynamo.
            table = torch.empty(recipe.vocab_size, recipe.hidden_size)
            parts["embed_tokens"] = nn.Embedding.from_pretrained(table, freeze=False)
        parts["layers"] = nn.ModuleDict({str(layer): recipe.layer(layer) for layer in split[index]})
        if self.is_last:
            parts["norm"] = recipe.norm()
        self.model = nn.ModuleDict(parts)
        if self.is_last and not recipe.tied_embeddings:  # after the rest, for any number of stages
            self.lm_head = nn.Linear(recipe.hidden_size, recipe.vocab_size, bias=False)

    def layers(self) -> list[nn.Module]:
        """Its layers, in order."""
        return list(self.model["layers"].children())

    def forward(self, x: Tensor) -> Output:
        """Runs this stage's part of the model on `x`."""
        if self.is_first:
            x = self.model["embed_tokens"](x)
        turn = rotation(x, self._recipe.rotary_size, self._recipe.rope_theta)
        for layer in self.layers():
            if self._recipe.activation_checkpointing and torch.is_grad_enabled():
                x = checkpoint(layer, x, *turn, use_reentrant=False)
            else:
                x = layer(x, *turn)
        return self._head(self.model["norm"](x)) if self.is_last else x

    def _head(self, x: Tensor) -> Output:
        head = self.model["embed_tokens"] if self._recipe.tied_embeddings else self.lm_head
        assert isinstance(head, nn.Embedding | nn.Linear)
        if self._recipe.loss_chunk is None:
            return F.linear(x, head.weight)
        return Unprojected(x, head.weight, self._recipe.loss_chunk)
