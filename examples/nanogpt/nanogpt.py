"""modded-nanogpt's GPT of track 3, for trials: code=examples/nanogpt model=nanogpt.

Biases, queries and keys of one length, squared ReLU, capped logits, by parts of the package's own.

Its equations are those of train_gpt_simple.py (github.com/KellerJordan/modded-nanogpt at f411b3d,
records/track_3_optimization).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from typing_extensions import override

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.ranges import Positive, Rows
from pipegap.trainer.models.decoder import KEYS, DecoderStage, LayerSize, Pretrained, Split
from pipegap.trainer.models.layers import Attention, Layer, Streams, normal, normalised, wide
from pipegap.trainer.models.llama import Llama
from pipegap.trainer.optimizers.routing import Kind


@dataclass(frozen=True, kw_only=True)
class NanoGPT(Llama):
    """The recipe of a model; it allocates no weights.

    The head is a matrix of its own, and its logits are capped before the loss: neither can it be
    tied to the embedding, nor be computed with the loss in chunks.
    """

    attention_scale: Positive
    logit_cap: Positive
    embedding_range: Positive
    tied_embeddings: bool = field(default=False, init=False)
    loss_chunk: Rows | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Raises BadInput for sizes that do not divide each other."""
        super().__post_init__()
        if self.head_size % 4:
            allowed = f"must divide hidden_size={self.hidden_size} into heads of a multiple of 4"
            raise BadInput("model.num_heads", self.num_heads, allowed)

    @property
    @override
    def rotary_size(self) -> int:
        """Half of a head is rotated."""
        return self.head_size // 2

    @property
    @override
    def not_exported(self) -> str | None:
        return "must not be modded-nanogpt's: transformers has no such architecture"

    @property
    @override
    def num_active_parameters(self) -> int:
        """All of them, with the embedding's norm and the head's biases."""
        return super().num_active_parameters + self.hidden_size + self.vocab_size

    @override
    def layer(self, index: int) -> nn.Module:
        d, kv = self.hidden_size, self.num_kv_heads * self.head_size
        norm = partial(Direction, scale=self.attention_scale, eps=self.rms_norm_eps)
        attention = Attention(d, self.num_heads, self.num_kv_heads, self.head_size, norm)
        attention.q_proj, attention.o_proj = Affine(d, d), AffineFromZero(d, d)
        attention.k_proj, attention.v_proj = Affine(d, kv), Affine(d, kv)
        return Layer(self.norm, attention, SquaredReLU(d, self.intermediate_size))

    @override
    def layer_size(self, index: int) -> LayerSize:
        d, kv, inner = self.hidden_size, self.num_kv_heads * self.head_size, self.intermediate_size
        matrices = 2 * d * d + 2 * d * kv + 2 * d * inner
        return LayerSize(matrices, vectors=5 * d + 2 * kv + inner, attention=d)

    @override
    def stage(self, index: int, split: Split) -> nn.Module:
        return NanoGPTStage(self, index, split)

    @override
    def pretrained(self, weights: Mapping[str, Tensor]) -> Pretrained:
        """The model by its own names, since transformers has none for it."""
        return Pretrained({"model_type": "nanogpt", **self.shared_config(KEYS)}, dict(weights))


class NanoGPTStage(DecoderStage):
    """A consecutive part of the model: its embedding has a norm, and its logits lie within ±cap."""

    def __init__(self, recipe: NanoGPT, index: int, split: Split) -> None:
        super().__init__(recipe, index, split)
        self._cap, sizes = recipe.logit_cap, (recipe.vocab_size, recipe.hidden_size)
        if self.is_first:
            std, eps = recipe.embedding_range, recipe.rms_norm_eps
            self.model["embed_tokens"] = NormedEmbedding(*sizes, std=std, eps=eps)
        if self.is_last:
            self.lm_head = HeadFromZero(*sizes)

    @override
    def _head(self, x: Tensor) -> Tensor:
        logits = wide(self.lm_head(x))
        ones = logits.new_ones(())
        # A backward keeps two tensors of the logits' size so, and three of x / √(1 + (x / cap)²).
        return logits * torch.addcmul(ones, logits, logits, value=self._cap**-2).rsqrt()


class NormedEmbedding(nn.Embedding):
    """Rows of a table, Normal(0, std) at the start, behind an RMSNorm.

    The norm undoes the table's scale, so a smaller `std` is a larger learning rate of the table.
    """

    def __init__(self, vocab_size: int, hidden_size: int, *, std: float, eps: float) -> None:
        super().__init__(vocab_size, hidden_size, _weight=torch.empty(vocab_size, hidden_size))
        self.gain = nn.Parameter(torch.empty(hidden_size))
        self._std, self._eps = std, eps

    def initial(self, name: str, shape: torch.Size, std: float, streams: Streams) -> Tensor:
        """The gain is 1."""
        return torch.ones(shape) if name == "gain" else normal(shape, self._std, streams())

    def kind(self, name: str) -> Kind:
        """The gain is a vector."""
        return "vector" if name == "gain" else "embedding"

    @override
    def forward(self, tokens: Tensor) -> Tensor:  # [batch, seq] to [batch, seq, hidden]
        rows = super().forward(tokens)
        return normalised(rows, self._eps).to(rows.dtype) * self.gain


class Affine(nn.Linear):
    """A linear map with biases, which start at 0."""

    def initial(self, name: str, shape: torch.Size, std: float, streams: Streams) -> Tensor:
        """Normal(0, std), as all matrices that do not start at 0 are as wide as hidden states."""
        return torch.zeros(shape) if name == "bias" else normal(shape, std, streams())


class AffineFromZero(nn.Linear):
    """A linear map with biases; all of it starts at 0."""

    def initial(self, name: str, shape: torch.Size, std: float, streams: Streams) -> Tensor:
        """Zeros."""
        return torch.zeros(shape)


class HeadFromZero(AffineFromZero):
    """Hidden states to logits."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__(hidden_size, vocab_size)

    def kind(self, name: str) -> Kind:
        """Its biases are a vector."""
        return "vector" if name == "bias" else "embedding"


class SquaredReLU(nn.Module):
    """down(relu(up(x))²) (Primer, arXiv 2109.08668), with biases."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.up_proj = Affine(hidden_size, intermediate_size)
        self.down_proj = AffineFromZero(intermediate_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """[…, hidden] to the same."""
        return self.down_proj(self.up_proj(x).relu().square())


class Direction(nn.Module):
    """Gives a query or a key one length, such that a score is `scale` times their product.

    Attention itself divides a product by √size, so that both directions together make up for it.
    """

    def __init__(self, size: int, *, scale: float, eps: float) -> None:
        super().__init__()
        self._factor, self._eps = scale**0.5 * size**0.25, eps

    def forward(self, x: Tensor) -> Tensor:
        """[…, size] to the same: x / rms(x), times the root of scale √size."""
        return (normalised(x, self._eps) * self._factor).to(x.dtype)
