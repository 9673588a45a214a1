"""The training loss, and its fusion with the head."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pipegap.trainer.models.layers import wide


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
    whole: Whole = run(logits_loss)
    part: Part = run(chunk_loss)

    def loss(output: Output, targets: Tensor) -> Tensor:
        if not isinstance(output, Unprojected):
            return whole(output, targets)
        if torch.is_grad_enabled():
            return _Chunked.apply(*output, targets.flatten(), part)
        chunks = zip(parts(output), targets.flatten().split(output.chunk), strict=True)
        losses = [whole(logits[None], labels[None]) * len(labels) for logits, labels in chunks]
        return torch.stack(losses).sum() / targets.numel()

    return loss


def logits_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """`cross_entropy` of logits [batch, seq, vocab]."""
    logits = logits.flatten(0, 1)
    return F.cross_entropy(wide(logits), targets.flatten())


def chunk_loss(logits: Tensor, targets: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
    """What logits [chunk, vocab] add to the mean over `num_tokens` tokens, in fp32 or wider, and
    their gradient, in their dtype. `targets` are [chunk]."""
    scores = wide(logits)
    log_sum = scores.logsumexp(-1, keepdim=True)
    target_scores = scores.gather(1, targets.unsqueeze(1))
    gradient = (scores - log_sum).exp_()
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
        head_grad = torch.zeros_like(head, dtype=wide(head[:0]).dtype)
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
