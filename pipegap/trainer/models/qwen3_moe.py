"""Qwen3-MoE: a router chooses some of many SwiGLUs for each token."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.ranges import Few, NonNegative, Rows
from pipegap.trainer.models.decoder import (
    DEFAULTS,
    KEYS,
    Decoder,
    LayerSize,
    Pretrained,
    size_of_heads,
)
from pipegap.trainer.models.layers import Attention, Layer, RMSNorm, Streams, normal
from pipegap.trainer.optimizers.routing import Kind

# A mixture of experts. Terms of the backward keep the experts equally busy. A term belongs to the
# gradient of the microbatch that made it, so versions, microbatches, replicas, recomputation and
# checkpoints treat it as they treat every gradient.


class NoBalance(nn.Module):
    """Does nothing; the interface of a balance, which acts in training mode only."""

    not_exported: ClassVar[str | None] = None
    """Why transformers cannot hold a model with it."""

    def __init__(self, coefficient: float, num_experts: int) -> None:
        super().__init__()
        self._coefficient, self._num_experts = coefficient, num_experts

    def scores(self, chances: Tensor) -> Tensor:
        """The scores by which the experts of a token are chosen: the router's `chances`, or changed
        ones, [tokens, experts]."""
        return chances

    def forward(self, out: Tensor, chances: Tensor, loads: Tensor) -> Tensor:
        """Returns `out`; its backward adds this balance's term to the gradient.

        `loads` has the number of (token, expert) pairs of each expert, int64 [experts].
        """
        return out


class AuxiliaryLoss(NoBalance):
    """Adds coefficient · E · Σ_e f_e P_e to the loss (Switch, arXiv 2101.03961, equation 4).

    P_e is the mean chance of expert e, and f_e its load per token, so that the sum over experts is
    the number of chosen ones. Both are means over a microbatch of one replica, and their product
    depends on it: m microbatches give another term than one. Each layer has its own term. The
    recorded losses do not contain it.
    """

    @override
    def forward(self, out: Tensor, chances: Tensor, loads: Tensor) -> Tensor:
        if not self.training:
            return out
        share = loads.to(chances.dtype) / len(chances)
        term = self._coefficient * self._num_experts * (share * chances.mean(0)).sum()
        return _WithLoss.apply(out, term)


class Bias(NoBalance):
    """Adds coefficient · b_e to the scores of expert e (DeepSeek-V3, arXiv 2412.19437).

    b counts steps of 1, up for an expert with less than the mean load of a batch and down for one
    with more. It is a weight, so that a delayed gradient belongs to the version that chose. Its
    gradient stands for load minus mean load; the rule that steps it takes the sign.
    """

    not_exported = "must not be bias: transformers has no such biases in this architecture"
    reads_master = True  # numbers of steps, which bf16 holds exactly up to 256 only

    def __init__(self, coefficient: float, num_experts: int) -> None:
        super().__init__(coefficient, num_experts)
        self.bias = nn.Parameter(torch.empty(num_experts))

    def kind(self, name: str) -> Kind:
        """The biases have a rule of their own."""
        return "balance"

    def initial(self, name: str, shape: torch.Size, std: float, streams: Streams) -> Tensor:
        """No steps yet."""
        return torch.zeros(shape)

    @override
    def scores(self, chances: Tensor) -> Tensor:
        return chances.detach() + self._coefficient * self.bias.detach()  # for `topk` alone

    @override
    def forward(self, out: Tensor, chances: Tensor, loads: Tensor) -> Tensor:
        if not self.training:
            return out
        counts = loads.to(self.bias.dtype)  # whole, and a mean that is exact for 2^n experts
        return _WithGradient.apply(out, self.bias, counts - counts.sum() / self._num_experts)


class _WithLoss(torch.autograd.Function):
    """x; its backward adds `term`, a scalar, to whatever loss is made of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, term: Tensor) -> Tensor:
        ctx.save_for_backward(torch.ones_like(term))  # ∂(loss + term) / ∂term
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, *ctx.saved_tensors


class _WithGradient(torch.autograd.Function):
    """x; its backward gives `weight` the gradient `gradient`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradient, *ctx.saved_tensors, None


class MixtureOfExperts(nn.Module):
    """Σ over the chosen experts of share · expert(x).

    A token's shares are the softmax over all experts at the `num_chosen` largest values, divided by
    their sum. `balance` may change which experts are chosen; the shares are the router's own.
    """

    def __init__(
        self, gate: "Router", experts: "Experts", balance: NoBalance, num_chosen: int
    ) -> None:
        super().__init__()
        self.gate, self.experts, self.balance = gate, experts, balance
        self._num_chosen = num_chosen

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, hidden] to the same."""
        tokens = x.flatten(0, 1)  # [tokens, hidden]
        chances = self.gate(tokens)  # [tokens, experts]
        expert_ids = self.balance.scores(chances).topk(self._num_chosen, -1).indices
        shares = chances.gather(-1, expert_ids)  # [tokens, chosen], without the balance's change
        shares = shares / shares.sum(-1, keepdim=True)
        routes = Routes.of(expert_ids, chances.shape[-1])
        out = self.balance(self.experts(tokens, shares.to(x.dtype), routes), chances, routes.loads)
        return out.view_as(x)


class MixtureWithSharedExpert(MixtureOfExperts):
    """Adds an expert that every token visits, weighted by the sigmoid of a linear map."""

    def __init__(
        self,
        gate: "Router",
        experts: "Experts",
        balance: NoBalance,
        num_chosen: int,
        shared_expert: nn.Module,
    ) -> None:
        super().__init__(gate, experts, balance, num_chosen)
        self.shared_expert = shared_expert
        self.shared_expert_gate = nn.Linear(gate.weight.shape[1], 1, bias=False)

    @override
    def forward(self, x: Tensor) -> Tensor:
        shared = self.shared_expert_gate(x).sigmoid() * self.shared_expert(x)
        return super().forward(x) + shared


class Router(nn.Module):
    """The softmax over the experts of a linear map, in fp32 or wider.

    In bf16 the values of many experts are equal, and the choice among them would be arbitrary.
    `kind` says how optimizers treat the map.
    """

    reads_master = True

    def __init__(
        self, hidden_size: int, num_experts: int, kind: Literal["matrix", "vector"]
    ) -> None:
        super().__init__()
        self.weight, self._kind = nn.Parameter(torch.empty(num_experts, hidden_size)), kind

    def kind(self, name: str) -> Kind:
        """The kind of the map, which the recipe chooses."""
        return self._kind

    def forward(self, tokens: Tensor) -> Tensor:
        """[tokens, hidden] to chances [tokens, experts]."""
        return F.linear(tokens.to(self.weight.dtype), self.weight).softmax(-1)


class Routes(NamedTuple):
    """The way of each chosen (token, expert) pair to its expert, and back.

    Pairs are numbered token by token. `order[i]` is the pair in place i, where pairs are sorted by
    expert; `inverse[j]` is the place of pair j. Expert e has the places below `ends[e]`, int32,
    that no expert before it has, and so `loads[e]` pairs.
    """

    order: Tensor
    inverse: Tensor
    ends: Tensor
    loads: Tensor

    @classmethod
    def of(cls, expert_ids: Tensor, num_experts: int) -> "Routes":
        """The routes to the experts `expert_ids` [tokens, experts per token]."""
        pairs = expert_ids.flatten()
        order = pairs.argsort(stable=True)  # the pairs of an expert stay in the tokens' order
        places = torch.arange(len(order), device=order.device)
        inverse = torch.empty_like(order).scatter_(0, order, places)
        experts = torch.arange(num_experts, device=order.device)
        # Not a sum of counts: CUDA has no deterministic cumsum and histogram.
        ends = torch.searchsorted(pairs[order], experts, right=True)
        return cls(order, inverse, ends.int(), ends.diff(prepend=ends.new_zeros(1)))


class Experts(nn.Module):
    """SwiGLUs as stacks of matrices, [experts, out, in], which optimizers see one by one.

    Gate and up matrices are apart: Muon would orthogonalise a joined matrix as one.
    """

    def __init__(self, num_experts: int, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        n, d, f = num_experts, hidden_size, intermediate_size
        self.gate_proj = nn.Parameter(torch.empty(n, f, d))
        self.up_proj = nn.Parameter(torch.empty(n, f, d))
        self.down_proj = nn.Parameter(torch.empty(n, d, f))

    def kind(self, name: str) -> Kind:
        """All three are stacks."""
        return "experts"

    def initial(self, name: str, shape: torch.Size, std: float, streams: Streams) -> Tensor:
        """Normal(0, std), with a stream for each expert."""
        matrices = [normal(shape[1:], std, streams(str(expert))) for expert in range(shape[0])]
        return torch.stack(matrices)

    def forward(self, tokens: Tensor, shares: Tensor, routes: Routes) -> Tensor:
        """[tokens, hidden] to sums over the chosen experts, weighted by shares [tokens, chosen]."""
        # One row per pair, [tokens · chosen, …], sorted by expert until `back`.
        rows = _ToExperts.apply(tokens, routes.order, routes.inverse)
        gate = multiplied(rows, self.gate_proj, routes.ends)
        up = multiplied(rows, self.up_proj, routes.ends)
        out = multiplied(F.silu(gate) * up, self.down_proj, routes.ends)
        back = _Permuted.apply(out, routes.inverse, routes.order).unflatten(0, shares.shape)
        return (back * shares.unsqueeze(-1)).sum(1)


def multiplied(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Each row times its expert's matrix: [rows, in] and [experts, out, in] to [rows, out].

    Rows are sorted by expert; `ends` is as in `Routes`.
    """
    if rows.dtype != torch.float64:
        return F.grouped_mm(rows, matrices.mT, offs=ends)
    bounds = [0, *ends.tolist()]  # `grouped_mm` takes no float64
    parts = zip(bounds[:-1], bounds[1:], matrices, strict=True)
    return torch.cat([rows[start:end] @ matrix.T for start, end, matrix in parts])


class _ToExperts(torch.autograd.Function):
    """Copies each token to the places of its pairs. Backward it gathers and sums over a token's
    pairs, where autograd's own backward would add in an order that CUDA does not fix."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.num_tokens = len(tokens)
        # Pairs are numbered token by token: pair // (pairs per token) is the token.
        return tokens.index_select(0, order // (len(order) // len(tokens)))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        rows = gradient.index_select(0, inverse)  # in the order of the pairs again
        return rows.unflatten(0, (ctx.num_tokens, -1)).sum(1), None, None


class _Permuted(torch.autograd.Function):
    """x[permutation]; backward it gathers by the `inverse` one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, permutation: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x.index_select(0, permutation)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return gradient.index_select(0, inverse), None, None


# Decoders with experts in every layer, of which Qwen3-Next is another. Qwen3-MoE has grouped-query
# attention with norms of queries and keys, and heads of any size, as in Hugging Face's
# Qwen3MoeForCausalLM.

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
