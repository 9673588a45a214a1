"""What the trainer asks of a model, and decoders that split themselves into stages."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.ranges import Few, Positive, Rows
from pipegap.trainer.models.layers import Output, RMSNorm, Unprojected, initialise, rotation
from pipegap.trainer.optimizers.routing import Kind, kinds

Split = tuple[range, ...]
"""The layers of each stage."""


@lru_cache(maxsize=1024)
def balanced(work: tuple[float, ...], num_stages: int, head: float) -> Split:
    """The layers of each stage; the slowest stage is as fast as possible.

    `work` has the work of each layer, `head` is the work of the last stage beside its layers. Of
    equally good splits this is the one with more layers on the last stage; the stages before it
    are split by the same rule, as a model of their own without a head. So the first stages, which
    keep the activations of more microbatches, have fewer layers. The last stage may have none.
    """
    done = [0.0, *accumulate(work)]  # done[n]: the work of the first n layers
    slowest = _slowest(done, num_stages - 1)
    cuts, head_work, least = [len(work)], head, 0
    for num_earlier_stages in range(num_stages - 1, 0, -1):  # the last stage first
        end = cuts[-1]

        def slowest_from(
            start: int,
            num_earlier_stages: int = num_earlier_stages,
            end: int = end,
            head_work: float = head_work,
        ) -> float:
            return max(slowest[num_earlier_stages][start], done[end] - done[start] + head_work)

        # `min` takes the first of equal ones: the earliest cut, so the most layers on this stage.
        cuts.append(min(range(num_earlier_stages, end + 1 - least), key=slowest_from))
        head_work, least = 0.0, 1  # the other stages have no head, and at least one layer
    return tuple(range(start, end) for start, end in pairwise([0, *reversed(cuts)]))


def _slowest(done: Sequence[float], num_stages: int) -> list[list[float]]:
    """At [k][n], the work of the slowest of k stages in the best split of the first n layers.

    `done[n]` is the work of these layers. With a later last cut the last stage has less work and
    the stages before it have more, so the best cut is where the two cross, or one before.
    """
    slowest = [[float("inf")] * len(done), list(done)]
    for k in range(2, num_stages + 1):
        previous_row, row, cut = slowest[-1], [float("inf")] * len(done), k - 1
        for n in range(k, len(done)):
            # `cut` only grows with n, so all rows take time in proportion to k · n.
            while cut < n - 1 and previous_row[cut] < done[n] - done[cut]:
                cut += 1
            cuts = range(max(k - 1, cut - 1), cut + 1)
            row[n] = min(max(previous_row[at], done[n] - done[at]) for at in cuts)
        slowest.append(row)
    return slowest


NOTHING: Mapping[str, Any] = MappingProxyType({})


class Pretrained(NamedTuple):
    """A model as Hugging Face's transformers store it.

    `config` is the content of its config.json, with all keys that its numbers depend on, and
    `tensors` are its weights by their names there. The other fields serve to read checkpoints of
    other authors. `defaults` has transformers' values of keys that a config.json may lack, or
    functions of the config where they depend on other keys. `keys` maps a key of the config to the
    key of the recipe. `tied` maps another name of a tensor to its name. `ignored` are patterns
    (`re.search`) of names that transformers leaves out.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    defaults: Mapping[str, Any] = NOTHING
    keys: Mapping[str, str] = NOTHING
    tied: Mapping[str, str] = NOTHING
    ignored: tuple[str, ...] = ()


class Recipe(Protocol):
    """A model that knows its size and makes any of its stages; it allocates no weights itself.

    A stage is a module. The first one takes tokens, int64 [batch, seq]; the others take hidden
    states [batch, seq, hidden_size]; the last one returns logits [batch, seq, vocab_size], or an
    `Unprojected` from which the loss computes them. Weights have the same names for every number of
    stages. A weight that both the first and the last stage name is tied. Stages are in training
    mode, except where the gradients of the plain loss are asked for, without terms that the model
    adds to it.
    """

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary, which must be the data's."""

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states that stages send each other."""

    @property
    def activation_checkpointing(self) -> bool:
        """Whether layers are recomputed in their backward."""

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model; tied weights count once."""

    @property
    def num_active_parameters(self) -> int:
        """Parameters of the whole model without the experts that one token does not visit."""

    @property
    def not_exported(self) -> str | None:
        """Why transformers cannot hold this model; None if `pretrained` can be called."""

    def flops_per_token(self, seq_len: int) -> float:
        """FLOPs of forward and backward per token, in sequences of `seq_len` tokens."""

    def split(self, num_stages: int, seq_len: int) -> Split:
        """The layers of each stage. Raises BadInput if there cannot be that many stages."""

    def work(self, split: Split, seq_len: int) -> list[float]:
        """Multiplications per token of each stage in a forward, of which only the ratios count."""

    def stage(self, index: int, split: Split) -> nn.Module:
        """The stage numbered `index`; its weights are undefined before `initialise`."""

    def initialise(self, module: nn.Module, seed: int) -> None:
        """Sets the initial weights of a stage: functions of the seed and of their names alone."""

    def kinds(self, module: nn.Module) -> dict[str, Kind]:
        """The kind of every weight of a stage, by name; optimizers treat a weight by its kind."""

    def pretrained(self, weights: Mapping[str, Tensor]) -> Pretrained:
        """The model with these weights, all of them by name, as transformers store it."""


compiled: Callable[..., Any] = partial(torch.compile, dynamic=False)
"""`torch.compile` for shapes that do not change: the smaller last batch of an evaluation gets a
graph of its own, and the graph of the training does not become a slower one for all shapes."""


def compiled_stage(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """The module with each of its `layers()` compiled by itself, or as a whole if it has none.

    Layers of one shape share one graph, in whichever stage they are. To compile a graph per stage
    would take the longer the deeper the model is, the graphs would depend on where the model is
    cut, and after eight of them torch would run the other stages uncompiled.
    """
    if not hasattr(module, "layers"):
        return compiled(module)
    for layer in module.layers():  # type: ignore[operator]
        layer.compile(dynamic=False)
    return module


# Decoders that are an embedding, layers and a head, and how they split themselves into stages.

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
"""Key of transformers' configs of all decoders → the field of `Decoder` that it is."""
DEFAULTS = {
    "rope_theta": 1e4,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
}
"""transformers' defaults of keys that config.json lacks, in all decoders."""


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
        # A tied embedding is the head too, and multiplies there.
        only_looked_up = 0 if self.tied_embeddings else self.vocab_size * self.hidden_size
        attention = sum(size.attention for size in self._sizes())
        num_factors = self.num_active_parameters - only_looked_up
        products = num_factors + sum(size.products for size in self._sizes())
        return 6 * products + 12 * attention * seq_len

    def split(self, num_stages: int, seq_len: int) -> Split:
        """The layers of each stage, balanced by counted work.

        Work counts multiplications: by matrices, in causal attention, and those without a
        parameter. The embedding's lookup has none. A loss that is fused with the head counts as
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
        """Another name under which a checkpoint may hold a tied embedding too → its name."""
        return {"lm_head.weight": "model.embed_tokens.weight"} if self.tied_embeddings else {}

    def norm(self) -> nn.Module:
        """A norm of hidden states."""
        return RMSNorm(self.hidden_size, self.rms_norm_eps)

    @property
    def _head_work(self) -> int:
        return self.vocab_size * (self.hidden_size + (LOSS if self.loss_chunk else 0))

    def _work(self, seq_len: int) -> tuple[int, ...]:
        # Causal attention: q kᵀ and the average of v, each with T / 2 tokens in the mean.
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
        cos, sin = rotation(x, self._recipe.rotary_size, self._recipe.rope_theta)
        for layer in self.layers():
            if self._recipe.activation_checkpointing and torch.is_grad_enabled():
                x = checkpoint(layer, x, cos, sin, use_reentrant=False)
            else:
                x = layer(x, cos, sin)
        return self._head(self.model["norm"](x)) if self.is_last else x

    def _head(self, x: Tensor) -> Output:
        head = self.model["embed_tokens"] if self._recipe.tied_embeddings else self.lm_head
        assert isinstance(head, nn.Embedding | nn.Linear)
        if self._recipe.loss_chunk is None:
            return F.linear(x, head.weight)
        return Unprojected(x, head.weight, self._recipe.loss_chunk)
