"""Delayed training of stages as the equation says it, in one process and in float64: an oracle for
`Schedule2BW` that shares no code with it."""

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor, nn

ROWS, WIDTH, MICROBATCHES, BATCHES, RATE = 8, 4, 4, 6, 0.1
Change = Callable[[nn.Module], object]
"""What a user does to a stage between two batches."""


class Block(nn.Module):
    """A small stage with what a user could change."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (nn.Linear(WIDTH, WIDTH, dtype=torch.float64) for _ in range(2))
        self.dropped, self.gain = nn.Dropout(1.0), 1.0
        self.register_buffer("shift", torch.zeros(WIDTH, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width], to the same."""
        return x + self.shift + self.gain * self.dropped(self.down(torch.tanh(self.up(x))))


def stages_of(*makes: Callable[[], nn.Module]) -> list[nn.Module]:
    """The same stages at every call."""
    torch.manual_seed(0)
    return [make() for make in makes]


def batch(t: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(t)
    x, y = torch.randn(2, ROWS, WIDTH, generator=generator, dtype=torch.float64)
    return x, y


def loss(output: Tensor, target: Tensor) -> Tensor:
    """The mean of squares."""
    return nn.functional.mse_loss(output, target)


def naive(
    stages: Sequence[nn.Module],
    changes: dict[int, Change],
    *,
    clip_norm: float | None = None,
    loss_of: Callable[[Tensor, Tensor], Tensor] = loss,
) -> None:
    """Trains by W(t+1) = W(t) − u_t − (u_t − u_{t−1}), by SGD and gradients at W(max(0, t − 1));
    what requires no gradient stays. `changes` are made to every stage before a batch.
    """
    weights = [weight for stage in stages for weight in stage.parameters()]
    optimizer = torch.optim.SGD(weights, lr=RATE)
    history, earlier = [[w.detach().clone() for w in weights]], None
    for t in range(BATCHES):
        for stage in stages if t in changes else ():
            changes[t](stage)
        history[t] = newest = [w.detach().clone() for w in weights]
        _set(weights, history[max(0, t - 1)])
        x, y = batch(t)
        for rows, targets in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES), strict=True):
            output = reduce(lambda h, stage: stage(h), stages, rows)
            (loss_of(output, targets) / MICROBATCHES).backward()
        _set(weights, newest)
        if clip_norm is not None:
            _clip(weights, clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        made = [old - w.detach() for old, w in zip(newest, weights, strict=True)]
        with torch.no_grad():
            for w, u, before in zip(weights, made, earlier or made, strict=True):
                if w.requires_grad:
                    w.add_(before - u)
        earlier = made
        history.append([w.detach().clone() for w in weights])


def assert_equal(
    stages: Sequence[nn.Module], right: Sequence[nn.Module], atol: float = 1e-12
) -> None:
    """Weights and buffers, by name, but for rounding."""
    for mine, its in zip(stages, right, strict=True):
        of_both = [{n: t.detach() for n, t in m.state_dict().items()} for m in (mine, its)]
        torch.testing.assert_close(*of_both, rtol=0, atol=atol)


@torch.no_grad()
def _set(weights: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for weight, value in zip(weights, values, strict=True):
        weight.copy_(value)


@torch.no_grad()
def _clip(weights: Sequence[Tensor], norm: float) -> None:
    """By dense gradients, in fp64."""
    dense = [w.grad.to_dense().double() for w in weights if w.grad is not None]
    total = sum((g.square().sum() for g in dense), torch.zeros((), dtype=torch.float64)).sqrt()
    for weight in weights:
        if weight.grad is not None:
            weight.grad = weight.grad * (norm / (total + 1e-6)).clamp(max=1.0)
