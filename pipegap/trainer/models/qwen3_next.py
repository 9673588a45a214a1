"""Qwen3-Next: Gated DeltaNet in most layers, gated softmax attention in every n-th one, experts in
every layer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor, nn
from typing_extensions import override

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.ranges import Few, Rows
from pipegap.trainer.models.decoder import LayerSize, Pretrained
from pipegap.trainer.models.layers import (
    Attention,
    CentredRMSNorm,
    Layer,
    RMSNorm,
    SigmoidGate,
    Streams,
    SwiGLU,
    wide,
)
from pipegap.trainer.models.qwen3_moe import (
    MIXTURE_DEFAULTS,
    MIXTURE_KEYS,
    MixtureDecoder,
    MixtureWithSharedExpert,
    joined,
)

# Gated DeltaNet (arXiv 2412.06464): linear attention whose state decays and corrects itself.

EPS = 1e-6
"""Added to the squared norms of queries and keys."""
LEAST, LARGEST = 0.01, 16.0
"""Range of the initial exp(A_log), the decay per unit of softplus."""
FUSED_CHUNKS = (16, 32, 64)
"""The chunks, in tokens, that flash-linear-attention has fused kernels for."""
FUSED_KEY_SIZE = 256
"""The widest keys that those kernels take."""


class GatedDeltaNet(nn.Module):
    """Heads of the gated delta rule, one per value head; groups of them share a query and a key.

    Queries, keys and values pass a causal convolution over `conv_size` tokens and SiLU. A head's
    log decay is −exp(A_log) · softplus(a + dt_bias), and its rate of writing sigmoid(b). Its
    output is normalised and gated by silu(z). The rule is computed in fp32 or wider, but in bf16 if
    it is `fused` and x is bf16.
    """

    reads_master = True  # dt_bias and A_log: bf16 would change the decay, an exponential of A_log

    def __init__(
        self,
        hidden_size: int,
        *,
        num_key_heads: int,
        num_value_heads: int,
        key_head_size: int,
        value_head_size: int,
        conv_size: int,
        chunk_size: int,
        fused: bool,
        eps: float,
    ) -> None:
        super().__init__()
        self._fused = fused
        d = hidden_size
        key, value = num_key_heads * key_head_size, num_value_heads * value_head_size
        self._key_head_size, self._value_head_size = key_head_size, value_head_size
        self._values_per_key, self._chunk_size = num_value_heads // num_key_heads, chunk_size
        self.q_proj = nn.Linear(d, key, bias=False)
        self.k_proj = nn.Linear(d, key, bias=False)
        self.v_proj = nn.Linear(d, value, bias=False)
        self.z_proj = nn.Linear(d, value, bias=False)
        self.b_proj = nn.Linear(d, num_value_heads, bias=False)
        self.a_proj = nn.Linear(d, num_value_heads, bias=False)
        self.conv1d = CausalConvolution(2 * key + value, conv_size)
        self.dt_bias = nn.Parameter(torch.empty(num_value_heads))
        self.A_log = nn.Parameter(torch.empty(num_value_heads))
        self.norm = RMSNorm(value_head_size, eps)
        self.out_proj = nn.Linear(value, d, bias=False)

    def initial(self, name: str, shape: torch.Size, std: float, streams: Streams) -> Tensor:
        """A_log is the log of uniform numbers, dt_bias 1, as in transformers' Qwen3-Next."""
        if name == "dt_bias":
            return torch.ones(shape)
        return torch.empty(shape).uniform_(LEAST, LARGEST, generator=streams()).log_()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[batch, seq, hidden] to the same; without positions, so `cos` and `sin` are not used."""
        projected = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        mixed = wide(F.silu(self.conv1d(torch.cat(projected, -1))))
        q, k, v = mixed.split([part.shape[-1] for part in projected], -1)
        # [batch, heads, seq, size], with as many heads of queries and keys as of values.
        q, k = (unit(self._heads(part, self._key_head_size)) for part in (q, k))
        q, k = (part.repeat_interleave(self._values_per_key, 1) for part in (q, k))
        rate = wide(self.b_proj(x)).sigmoid().transpose(1, 2)
        decay = -self.A_log.exp() * F.softplus(wide(self.a_proj(x)) + self.dt_bias)  # its log
        v = self._heads(v, self._value_head_size)
        is_fused = self._fused and x.dtype == torch.bfloat16  # evaluations may be in fp32
        rule = fused_gated_delta_rule if is_fused else gated_delta_rule
        out = rule(q, k, v, decay.transpose(1, 2), rate, self._chunk_size)
        out = self.norm(out.transpose(1, 2).to(x.dtype))
        gate = F.silu(wide(self.z_proj(x))).unflatten(-1, out.shape[-2:])
        return self.out_proj((out * gate).to(x.dtype).flatten(2))

    @staticmethod
    def _heads(x: Tensor, size: int) -> Tensor:
        return x.unflatten(-1, (-1, size)).transpose(1, 2)


class CausalConvolution(nn.Module):
    """Each channel by itself: a weighted sum of the last tokens, zeros before the first one.

    It is written as products of shifted inputs, whose gradients need no atomic additions. Its
    weight [channels, taps] is no matrix to optimizers: it multiplies no vector of channels.
    """

    def __init__(self, num_channels: int, num_taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_channels, num_taps))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, channels] to the same."""
        num_taps, seq_len = self.weight.shape[1], x.shape[1]
        padded = F.pad(x, (0, 0, num_taps - 1, 0))
        shifted = (padded[:, tap : tap + seq_len] for tap in range(num_taps))
        first, *later_terms = (y * w for y, w in zip(shifted, self.weight.unbind(1), strict=True))
        return sum(later_terms, first)


def unit(x: Tensor) -> Tensor:
    """x divided by its norm over the last dimension."""
    return x * torch.rsqrt(torch.linalg.vecdot(x, x).unsqueeze(-1) + EPS)


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor, chunk_size: int
) -> Tensor:
    """Returns o_t = S_tᵀ q_t / √K, where S_0 = 0 and

    S_t = exp(log_decay_t) (I − rate_t k_t k_tᵀ) S_{t−1} + rate_t k_t v_tᵀ.

    q, k are [batch, heads, seq, K] of norm 1, v and o [batch, heads, seq, V], log_decay ≤ 0 and
    rate [batch, heads, seq]. o is computed in chunks, as in section 3.3 of the paper: the writes of
    the tokens of a chunk depend on each other, by a triangular system, and on the state before the
    chunk.
    """
    seq_len, key_size, value_size = q.shape[2], q.shape[3], v.shape[3]
    pad = -seq_len % chunk_size  # tokens that write nothing, as their rate is 0
    # [batch, heads, chunks, chunk, …] from here on; log_decay and rate end in 1.
    q, k, v, log_decay, rate = (
        F.pad(x, (0, 0, 0, pad)).unflatten(2, (-1, chunk_size))
        for x in (q * key_size**-0.5, k, v, log_decay.unsqueeze(-1), rate.unsqueeze(-1))
    )
    between, since_start = decays(log_decay)
    system = (rate * k) @ k.mT * between  # the solver takes its diagonal for 1
    right = torch.cat((rate * v, rate * k * since_start), -1)
    writes = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    parts = (
        *writes.split((value_size, key_size), -1),  # from a state of 0; per unit of the state
        q * since_start,
        q @ k.mT * between,  # 0 for later tokens, as `between` is
        (k * between[..., -1:, :].mT).mT,  # with what is left of each write at the chunk's end
        since_start[..., -1:, :],
    )
    # S before the chunk, [batch, heads, K, V]; only this loop goes chunk by chunk.
    state, out = q.new_zeros(*q.shape[:2], key_size, value_size), []
    for value, eraser, reader, within, writer, decay in zip(
        *(part.unbind(2) for part in parts), strict=True
    ):
        correction = value - eraser @ state
        out.append(reader @ state + within @ correction)
        state = decay * state + writer @ correction
    return torch.cat(out, 2)[:, :, :seq_len]


def decays(log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """The share of token j's write that is left at token i ≥ j of its chunk, [..., i, j], 0 for
    j > i; and that of the state before the chunk, [..., i, 1]. `log_decay` is [..., chunk, 1].

    The logs are sums from j to i, not differences of cumulative sums, which lose digits where decay
    is strong. They are products of matrices, since CUDA has no deterministic cumulative sum.
    """
    size = log_decay.shape[-2]
    lower = log_decay.new_ones(size, size).tril()
    return (lower @ (log_decay * lower.tril(-1))).exp().tril(), (lower @ log_decay).exp()


def fused_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor, chunk_size: int
) -> Tensor:
    """`gated_delta_rule` on a GPU, up to the rounding of bf16.

    The kernels take queries, keys and values in bf16 and decays in fp32. Triton times them and
    keeps the fastest, so that two processes may add in another order. Raises BadInput where
    flash-linear-attention cannot be imported. With Triton 3.4 to 3.7.0 its backward raises
    RuntimeError on Hopper GPUs.
    """
    try:  # only here: the machine that plans a trial may lack it, and the import takes seconds
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except ImportError as error:
        allowed = f"needs `pip install 'pipegap[fla]'` ({error})"
        raise BadInput("model.fused_delta_rule", True, allowed) from None
    q, k, v, rate = (x.transpose(1, 2).bfloat16() for x in (q, k, v, rate))
    decay = log_decay.transpose(1, 2).float()
    out, _ = chunk_gated_delta_rule(q, k, v, decay, rate, chunk_size=chunk_size)
    out = out.transpose(1, 2)
    assert isinstance(out, Tensor)
    return out


# The decoder, with a shared expert beside the others, as in Hugging Face's Qwen3NextForCausalLM.

MIXER = ".self_attn."
"""The part between the layer and the weight, in names of attention's and Gated DeltaNet's."""
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
        tensors = self._renamed(joined(weights))
        ignored = (r"^mtp",)  # the heads that predict further tokens
        return Pretrained(config, tensors, NEXT_DEFAULTS, NEXT_KEYS, self.tied_names, ignored)

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
        """`products` are those with each head's state: reading it by k and q, decay, writing."""
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
        # transformers has in_proj_qkvz and in_proj_ba, each joined head by head.
        for letters in ("qkvz", "ba"):
            matrices = [renamed.pop(f"{letter}_proj.weight") for letter in letters]
            renamed[f"in_proj_{letters}.weight"] = by_head(matrices, self.num_key_heads)
        renamed["conv1d.weight"] = renamed["conv1d.weight"].unsqueeze(1)  # as nn.Conv1d's
        return renamed


def by_head(matrices: list[Tensor], num_heads: int) -> Tensor:
    """The rows of the first head of each matrix, then the rows of the second head, and so on."""
    return torch.cat([matrix.unflatten(0, (num_heads, -1)) for matrix in matrices], 1).flatten(0, 1)
