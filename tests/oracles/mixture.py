"""A decoder with experts written naively, token by token, and its training under a delay of 1.

Every expert is a module of its own, so nothing here knows stacks. The loss has its auxiliary term
written out; biases follow DeepSeek-V3's rule."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_


class Expert(nn.Module):
    def __init__(self, d: int, f: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(d, f, bias=False), nn.Linear(d, f, bias=False)
        self.down_proj = nn.Linear(f, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Mixture(nn.Module):
    """`speed` is that of the biases, `loss_coefficient` that of the auxiliary loss."""

    def __init__(self, recipe: Any, speed: float, loss_coefficient: float) -> None:
        super().__init__()
        n, d = recipe.num_experts, recipe.hidden_size
        self.gate = nn.Linear(d, n, bias=False)
        self.experts = nn.ModuleList(Expert(d, recipe.intermediate_size) for _ in range(n))
        self.k, self.speed, self.loss_coefficient = (
            recipe.experts_per_token,
            speed,
            loss_coefficient,
        )
        self.steps = [0] * n
        self.loads, self.term = [0] * n, torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        chances = self.gate(tokens).softmax(-1)
        loads, out = [0] * len(self.steps), []
        for token, chance in zip(tokens, chances, strict=True):
            scores = [c + self.speed * b for c, b in zip(chance.tolist(), self.steps, strict=True)]
            best = sorted(range(len(scores)), key=lambda e: -scores[e])[: self.k]
            total = sum(chance[e] for e in best)
            out.append(sum(chance[e] / total * self.experts[e](token) for e in best))
            for e in best:
                loads[e] += 1
        means = chances.mean(0)
        term = sum(load / len(tokens) * mean for load, mean in zip(loads, means, strict=True))
        self.term = self.loss_coefficient * len(loads) * term
        self.loads = [a + b for a, b in zip(self.loads, loads, strict=True)]
        return torch.stack(out).view_as(x)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    lr: Callable[[int], float],
    batches: Sequence[Tensor],
    *,
    delay: int,
    num_parts: int,
    coefficient: float,
    clip_norm: float,
) -> tuple[list[float], list[float]]:
    """Trains `model` in place with error feedback; returns losses and norms of the gradients."""
    mixtures = [module for module in model.modules() if isinstance(module, Mixture)]
    weights = list(model.parameters())
    versions = [[w.detach().clone() for w in weights]]
    steps = [[list(mixture.steps) for mixture in mixtures]]
    previous: list[Tensor] = []
    losses, norms = [], []
    for t, batch in enumerate(batches):
        read = max(0, t - delay)
        _load(weights, versions[read])
        model.zero_grad()
        for mixture, of in zip(mixtures, steps[read], strict=True):
            mixture.steps, mixture.loads = of, [0] * len(of)
        loss = 0.0
        for rows in batch.chunk(num_parts):
            plain = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
            (sum((mixture.term for mixture in mixtures), plain) / num_parts).backward()
            loss += plain.item() / num_parts
        losses.append(loss)
        norms.append(float(clip_grad_norm_(weights, clip_norm)))
        steps.append([_next(m.loads, of) for m, of in zip(mixtures, steps[t], strict=True)])
        _load(weights, versions[t])
        for group in optimizer.param_groups:
            group["lr"] = lr(t)
        optimizer.step()
        update = [old - w.detach() for old, w in zip(versions[t], weights, strict=True)]
        corrected = [
            w.detach() - coefficient * (u - before)
            if t > read and before.any()
            else w.detach().clone()
            for w, u, before in zip(weights, update, previous or update, strict=True)
        ]
        versions.append(corrected)
        previous = update
    _load(weights, versions[-1])
    for mixture, of in zip(mixtures, steps[-1], strict=True):
        mixture.steps = of
    return losses, norms


def _next(loads: Sequence[int], steps: Sequence[int]) -> list[int]:
    """One step down for an expert with more than the mean load, one up for one with less."""
    mean = sum(loads) / len(loads)
    return [step - (load > mean) + (load < mean) for load, step in zip(loads, steps, strict=True)]


def _load(weights: Sequence[nn.Parameter], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for weight, value in zip(weights, values, strict=True):
            weight.copy_(value)


# The gated delta rule token by token, as in equation 10 of arXiv 2412.06464.


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor) -> Tensor:
    """S_t = S_{t−1} (α_t (I − β_t k_t k_tᵀ)) + β_t v_t k_tᵀ and o_t = S_t q_t / √K."""
    sequences, heads, seq_len, key_size = k.shape
    identity, rows = torch.eye(key_size, dtype=k.dtype), []
    for s in range(sequences):
        for h in range(heads):
            state = torch.zeros(v.shape[-1], key_size, dtype=k.dtype)
            for t in range(seq_len):
                key, value, beta = k[s, h, t], v[s, h, t], rate[s, h, t]
                kept = log_decay[s, h, t].exp() * (identity - beta * torch.outer(key, key))
                state = state @ kept + beta * torch.outer(value, key)
                rows.append(state @ q[s, h, t] / key_size**0.5)
    return torch.stack(rows).view_as(v)
