"""Parts that every decoder has: norm, attention with rotary positions, feed-forward part, layer,
and their initial weights; and the loss.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from typing_extensions import override

from pipegap.trainer.base.resources import stream
from pipegap.trainer.optimizers.routing import Kind

Streams = Callable[..., Generator]
"""Name of a part of a parameter → its random stream; without a name, that of the whole."""
SHORT = 256
"""Tokens up to which, in bf16 on a CPU, matrix products are faster than torch's kernel, which does
not use the processor's bf16 products (bench/README.md)."""


@torch.no_grad()
def initialise(module: nn.Module, std: float, seed: int) -> None:
    """Normal(0, std) for matrices and 1 for vectors, unless their module says otherwise: a method
    `initial(name, shape, std, streams)` of it returns the values of its parameter `name`.

    Each parameter is drawn on the CPU from a stream of its own name, so that its values depend on
    neither the stages nor the device.
    """
    for path, submodule in module.named_modules():
        for name, parameter in submodule.named_parameters(recurse=False):
            streams = partial(stream, seed, "init", f"{path}.{name}".lstrip("."))
            if (initial := getattr(submodule, "initial", None)) is not None:
                parameter.copy_(initial(name, parameter.shape, std, streams))
            elif parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                parameter.copy_(normal(parameter.shape, std, streams()))


def normal(shape: torch.Size, std: float, generator: Generator) -> Tensor:
    """Normal(0, std), fp32 on the CPU."""
    return torch.empty(shape).normal_(0, std, generator=generator)


class Layer(nn.Module):
    """Attention and a feed-forward part, each behind a norm and added to the residual stream.

    Attention may be softmax or linear.
    """

    def __init__(self, norm: Callable[[], nn.Module], attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.input_layernorm = norm()
        self.self_attn = attention
        self.post_attention_layernorm = norm()
        self.mlp = mlp

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[batch, seq, hidden] to the same; `cos` and `sin` as in `rotate`."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class RMSNorm(nn.Module):
    """x / rms(x) · weight (arXiv 1910.07467), normalised in fp32 or wider."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self._eps = nn.Parameter(torch.empty(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        """[…, size] to the same."""
        return normalised(x, self._eps).to(x.dtype) * self.weight


class CentredRMSNorm(RMSNorm):
    """x / rms(x) · (1 + weight), computed in fp32 or wider; the weight starts at 0."""

    def initial(self, name: str, shape: torch.Size, std: float, streams: Streams) -> Tensor:
        """The factor is 1."""
        return torch.zeros(shape)

    @override
    def forward(self, x: Tensor) -> Tensor:
        return (normalised(x, self._eps) * (1 + wide(self.weight))).to(x.dtype)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)) (arXiv 2002.05202)."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[…, hidden] to the same."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def normalised(x: Tensor, eps: float) -> Tensor:
    """x / √(mean of x² + eps) over the last dimension, in fp32 or wider.

    Written by hand: it takes half the time of torch's, which has no fused kernel on the CPU.
    """
    x = wide(x)
    mean_square = torch.linalg.vecdot(x, x).unsqueeze(-1) / x.shape[-1]
    return x * torch.rsqrt(mean_square + eps)


def wide(x: Tensor) -> Tensor:
    """x in fp32, if its dtype is narrower."""
    return x if x.dtype.itemsize >= 4 else x.float()


class NoGate(nn.Module):
    """Leaves what the heads return as it is; the interface of a gate."""

    def __init__(self, hidden_size: int, size: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Hidden states [batch, seq, hidden] and the heads' averages `mixed` [batch, seq, size] to
        gated averages, of the shape of `mixed`."""
        return mixed


class SigmoidGate(NoGate):
    """Multiplies what the heads return by the sigmoid of a linear map of the token."""

    def __init__(self, hidden_size: int, size: int) -> None:
        super().__init__(hidden_size, size)
        self.weight = nn.Parameter(torch.empty(size, hidden_size))

    def kind(self, name: str) -> Kind:
        """The map is a hidden matrix."""
        return "matrix"

    @override
    def forward(self, x: Tensor, mixed: Tensor) -> Tensor:
        return mixed * F.linear(x, self.weight).sigmoid()


class Attention(nn.Module):
    """Softmax attention of `num_heads` heads; groups of them share one of `num_kv_heads` keys and
    values. `norm(head_size)` makes the norms of queries and keys, each over one head, and
    `gate(hidden_size, num_heads · head_size)` the gate behind the heads."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        norm: Callable[[int], nn.Module] = nn.Identity,
        gate: Callable[[int, int], nn.Module] = NoGate,
    ) -> None:
        super().__init__()
        d, q, kv = hidden_size, num_heads * head_size, num_kv_heads * head_size
        self._head_size = head_size
        self.q_proj = nn.Linear(d, q, bias=False)
        self.k_proj = nn.Linear(d, kv, bias=False)
        self.v_proj = nn.Linear(d, kv, bias=False)
        self.o_proj = nn.Linear(q, d, bias=False)
        self.q_norm, self.k_norm = norm(head_size), norm(head_size)
        self.gate_proj = gate(d, q)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[batch, seq, hidden] to the same; `cos` and `sin` as in `rotate`."""
        return self.o_proj(self.gate_proj(x, self.mixed(x, cos, sin)))

    def mixed(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The heads' averages of values, side by side: [batch, seq, num_heads · head_size]."""
        # q [batch, num_heads, seq, head_size], k and v [batch, num_kv_heads, seq, head_size].
        q = rotate(self.q_norm(self._heads(self.q_proj(x))).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(self._heads(self.k_proj(x))).transpose(1, 2), cos, sin)
        v = self._heads(self.v_proj(x)).transpose(1, 2)
        return causal(q, k, v).transpose(1, 2).flatten(2)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self._head_size))


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each token's average of the values up to it, weighted by softmax(q kᵀ / √size).

    q and what is returned are [batch, heads, seq, size], k and v [batch, heads of keys, seq, size].
    """
    if q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.shape[2] <= SHORT:
        return in_products(q, k, v)
    is_grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=is_grouped)


def in_products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`causal` with all scores in memory, and their softmax in fp32."""
    seq_len, scale = q.shape[2], q.shape[3] ** -0.5
    future = torch.full((seq_len, seq_len), -math.inf, device=q.device).triu(1)
    # [batch, heads of keys, heads per key · seq, size]: the heads that share a key are its rows.
    rows = (q * scale).unflatten(1, (k.shape[1], -1)).flatten(2, 3)
    scores = (rows @ k.mT).unflatten(2, (-1, seq_len)).float() + future
    weights = scores.softmax(-1).to(v.dtype).flatten(2, 3)
    return (weights @ v).unflatten(2, (-1, seq_len)).flatten(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE (arXiv 2104.09864) on the first `size` of [batch, heads, seq, head]: pairs are
    (i, i + size / 2).

    `cos` and `sin` are [seq, size]. `sin` is negative in its first half, so rolling by half the
    size gives the rotation by 90°.
    """
    size = cos.shape[-1]
    if size < x.shape[-1]:
        return torch.cat((rotate(x[..., :size], cos, sin), x[..., size:]), -1)
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def rotation(x: Tensor, size: int, theta: float) -> tuple[Tensor, Tensor]:
    """The cosines and signed sines of RoPE with base `theta` for [batch, seq, …], made in fp32.

    Both are [seq, size], in x's dtype.
    """
    exponents = torch.arange(0, size, 2, device=x.device, dtype=torch.float32) / size
    positions = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
    angles = torch.outer(positions, theta**-exponents)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1).to(x.dtype), torch.cat((-sin, sin), -1).to(x.dtype)


# The training loss, and its fusion with the head.


class Unprojected(NamedTuple):
    """What the last stage returns in place of logits, so that they are never in memory as a whole.

    `hidden` are its last hidden states, [batch, seq, hidden], and `head` the weight that makes
    logits of them, [vocab, hidden]; the loss does so for `chunk` tokens at a time.
    """

    hidden: Tensor
    head: Tensor
    chunk: int


Output = Tensor | Unprojected
"""What the last stage returns: logits [batch, seq, vocab], or what makes them."""
Whole = Callable[[Tensor, Tensor], Tensor]
Part = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]


def cross_entropy(output: Output, targets: Tensor) -> Tensor:
    """Mean cross-entropy over all tokens, in nats per token, computed in fp32 or wider.

    `targets` are [batch, seq].
    """
    return loss_by(lambda function: function)(output, targets)


def loss_by(run: Callable[[Any], Any]) -> Callable[[Output, Tensor], Tensor]:
    """Returns `cross_entropy` with each of its functions wrapped by `run`, e.g. `torch.compile`.

    The compiled loss makes no fp32 copy of the logits (bench/README.md).
    """
    # The functions of logits are wrapped, not the loop over chunks, which autograd runs.
    whole: Whole = run(logits_loss)
    part: Part = run(chunk_loss)

    def loss(output: Output, targets: Tensor) -> Tensor:
        if not isinstance(output, Unprojected):
            return whole(output, targets)
        if torch.is_grad_enabled():
            return _Chunked.apply(*output, targets.flatten(), part)
        # Means of chunks, weighted by their sizes: the last one may be shorter.
        chunks = zip(parts(output), targets.flatten().split(output.chunk), strict=True)
        losses = [whole(logits[None], labels[None]) * len(labels) for logits, labels in chunks]
        return torch.stack(losses).sum() / targets.numel()

    return loss


def logits_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """`cross_entropy` of logits [batch, seq, vocab]."""
    logits = logits.flatten(0, 1)
    return F.cross_entropy(wide(logits), targets.flatten())


def chunk_loss(logits: Tensor, targets: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
    """The share of logits [chunk, vocab] in the mean loss of `num_tokens` tokens, in fp32 or wider,
    and its gradient by the logits, in their dtype. `targets` are [chunk]."""
    scores = wide(logits)
    log_sum = scores.logsumexp(-1, keepdim=True)
    target_scores = scores.gather(1, targets.unsqueeze(1))
    gradient = (scores - log_sum).exp_()  # softmax; less 1 at the target, below
    is_target = torch.arange(logits.shape[1], device=logits.device) == targets.unsqueeze(1)
    gradient = gradient.sub_(is_target.to(scores.dtype)).div_(num_tokens).to(logits.dtype)
    return (log_sum - target_scores).sum() / num_tokens, gradient


def parts(output: Output) -> Iterator[Tensor]:
    """The logits, [tokens, vocab], as many at a time as the output allows."""
    if isinstance(output, Unprojected):
        for hidden in output.hidden.flatten(0, -2).split(output.chunk):
            yield hidden @ output.head.T
    else:
        yield output.flatten(0, -2)


class _Chunked(torch.autograd.Function):
    """Head and loss in one: the gradients are made in the forward, while a chunk's logits are
    there, so that no product is done twice. The head's is summed over chunks in fp32 or wider."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, chunk: int, targets: Tensor, part: Part
    ) -> Tensor:
        rows, losses = hidden.flatten(0, -2), []
        hidden_grad = torch.empty_like(rows)
        head_grad = torch.zeros_like(head, dtype=wide(head[:0]).dtype)  # `[:0]`: only its dtype
        for start in range(0, len(rows), chunk):
            span = slice(start, start + chunk)
            loss, gradient = part(rows[span] @ head.T, targets[span], len(rows))
            losses.append(loss)
            torch.mm(gradient, head, out=hidden_grad[span])
            head_grad += gradient.T @ rows[span]
            del gradient  # before the next chunk has its logits
        ctx.gradients = hidden_grad.view_as(hidden), head_grad.to(head.dtype)
        return torch.stack(losses).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden_grad, head_grad = ctx.gradients
        del ctx.gradients  # scaled in place: there is no second backward
        return hidden_grad.mul_(gradient), head_grad.mul_(gradient), None, None, None
