"""A mixture of experts: a router chooses some of many SwiGLUs for each token."""

from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from pipegap.trainer.models.balance import NoBalance
from pipegap.trainer.models.initial import Streams, normal
from pipegap.trainer.optimizers.routing import Kind


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
        tokens = x.flatten(0, 1)
        chances = self.gate(tokens)
        chosen = self.balance.scores(chances).topk(self._num_chosen, -1).indices
        shares = chances.gather(-1, chosen)
        shares = shares / shares.sum(-1, keepdim=True)
        routes = Routes.of(chosen, chances.shape[-1])
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
    def of(cls, chosen: Tensor, num_experts: int) -> "Routes":
        """The routes to `chosen`, the numbers of experts [tokens, chosen]."""
        pairs = chosen.flatten()
        order = pairs.argsort(stable=True)
        places = torch.arange(len(order), device=order.device)
        inverse = torch.empty_like(order).scatter_(0, order, places)
        experts = torch.arange(num_experts, device=order.device)
        # Not a sum of counts: CUDA has no deterministic cumsum and histogram.
        ends = torch.searchsorted(pairs[order], experts, right=True)
        return cls(order, inverse, ends.int(), ends.diff(prepend=ends.new_zeros(1)))


class Experts(nn.Module):
    """SwiGLUs as stacks of matrices, [experts, out, in], which optimizers see one by one.

    Gate and up matrices are apart: joined, they would be another matrix to Muon.
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
        drawn = [normal(shape[1:], std, streams(str(expert))) for expert in range(shape[0])]
        return torch.stack(drawn)

    def forward(self, tokens: Tensor, shares: Tensor, routes: Routes) -> Tensor:
        """[tokens, hidden] to sums over the chosen experts, weighted by shares [tokens, chosen]."""
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
    bounds = [0, *ends.tolist()]  # torch groups no float64
    parts = zip(bounds[:-1], bounds[1:], matrices, strict=True)
    return torch.cat([rows[start:end] @ matrix.T for start, end, matrix in parts])


class _ToExperts(torch.autograd.Function):
    """Copies each token to the places of its pairs. Backward it gathers and sums over a token's
    pairs, where autograd's own backward would add in an order that CUDA does not fix."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.num_tokens = len(tokens)
        return tokens.index_select(0, order // (len(order) // len(tokens)))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        rows = gradient.index_select(0, inverse)
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
