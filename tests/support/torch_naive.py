"""Delayed training of stages as the equation says it, in one process and in float64: an oracle for
`Schedule2BW` that shares no code with it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipegap.trainer.base.resources import rank_device
from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.schedules.recipes import pipedream_2bw
from tests.oracles import corrections, semantics
from tests.support import choices, every_correction, toy
from tests.support.torch_pipeline import (
    EMBEDDING,
    HEAD,
    OPTIMIZERS,
    Case,
    T,
    Trained,
    batch,
    modules,
    modules_of,
    tokens,
)

ROWS, WIDTH, MICROBATCHES, BATCHES, RATE = 8, 4, 4, 6, 0.1
Change = Callable[[nn.Module], object]
"""What a user does to a stage between two batches."""


class Block(nn.Module):
    """A small stage with what a user could change."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (nn.Linear(WIDTH, WIDTH, dtype=torch.float64) for _ in range(2))
        self.dropped, self.gain = nn.Dropout(1.0).eval(), 1.0
        self.register_buffer("shift", torch.zeros(WIDTH, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width], to the same."""
        return x + self.shift + self.gain * self.dropped(self.down(torch.tanh(self.up(x))))


def stages_of(*makes: Callable[[], nn.Module]) -> list[nn.Module]:
    """The same stages at every call."""
    torch.manual_seed(0)
    return [make() for make in makes]


def batch_of_torch_naive(t: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(t)
    x, y = torch.randn(2, ROWS, WIDTH, generator=generator, dtype=torch.float64)
    return x, y


def loss(output: Tensor, target: Tensor) -> Tensor:
    """The mean of squares."""
    return nn.functional.mse_loss(output, target)


def forward(
    stages: Sequence[nn.Module], rows: Tensor, i: int = 0, keywords: Mapping[str, Any] | None = None
) -> Any:
    """What the stages make of microbatch `i`: each gets its rows of keywords that are tensors."""
    given = {
        name: value.chunk(MICROBATCHES)[i] if isinstance(value, Tensor) else value
        for name, value in (keywords or {}).items()
    }
    output: Any = rows
    for stage in stages:
        inputs = output if isinstance(output, tuple) else (output,)
        output = stage(*inputs, **given)
    return output


def naive(
    stages: Sequence[nn.Module],
    changes: dict[int, Change],
    *,
    clip_norm: float | None = None,
    loss_of: Callable[[Any, Tensor], Tensor] = loss,
    delay: int = 1,
    keywords: Mapping[str, Any] | None = None,
    divisor: int = MICROBATCHES,
) -> tuple[list[list[Tensor]], list[list[Any]]]:
    """Trains by W(t+1) = W(t) − u_t − (u_t − u_{t−1}), by SGD and gradients at W(max(0, t − 1)), or
    without a delay by W(t) − u_t; what requires no gradient stays. `changes` are made to every
    stage before a batch. Returns losses and outputs of each batch by microbatch.
    """
    weights = [weight for stage in stages for weight in stage.parameters()]
    optimizer = torch.optim.SGD(weights, lr=RATE)
    history, earlier = [[w.detach().clone() for w in weights]], None
    losses: list[list[Tensor]] = []
    outputs: list[list[Any]] = []
    for t in range(BATCHES):
        for stage in stages if t in changes else ():
            changes[t](stage)
        history[t] = newest = [w.detach().clone() for w in weights]
        _set(weights, history[max(0, t - delay)])
        parts = [*zip(*(of.chunk(MICROBATCHES) for of in batch_of_torch_naive(t)), strict=True)]
        outputs.append([forward(stages, rows, i, keywords) for i, (rows, _) in enumerate(parts)])
        losses.append([loss_of(o, y) for o, (_, y) in zip(outputs[t], parts, strict=True)])
        (sum(losses[t]) / divisor).backward()
        _set(weights, newest)
        if clip_norm is not None:
            _clip(weights, clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        made = [old - w.detach() for old, w in zip(newest, weights, strict=True)]
        with torch.no_grad():
            for w, u, before in zip(weights, made, earlier or made, strict=True):
                if w.requires_grad and delay:
                    w.add_(before - u)
        earlier = made
        history.append([w.detach().clone() for w in weights])
    return losses, outputs


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


# What one process makes of the cases of `torch_pipeline`: by equations, and as a trial does.


def expected(case: Case, num_stages: int, dtype: torch.dtype = torch.float32) -> Trained:
    """The same by the naive equations, in one process, on the device of the first rank."""
    torch.set_num_threads(1)
    device = rank_device(case.device, 0, 1)
    stages = [stage.to(device) for stage in modules_of(case, num_stages, dtype)]
    start, tied = case.synchronous_start, []
    if case.shares == "stages":
        with torch.no_grad():
            head = stages[-1].get_parameter(HEAD)
            head.copy_(stages[0].get_parameter(EMBEDDING))
        names = [name for stage in stages for name, _ in stage.named_parameters()]
        tied = [(names.index(EMBEDDING), names.index(HEAD))]
    if case.correction:
        node = every_correction.settings(case.correction)
        correction = every_correction.reference(case.correction, node)
    else:
        feedback = corrections.Settings(coefficient=case.error_feedback, lag=1)
        correction = corrections.ErrorFeedback(feedback, T)
    peak = OPTIMIZERS[case.optimizer](modules(num_stages)[0]).param_groups[0]["lr"]
    versions, losses = semantics.train(
        stages,
        [1] * num_stages,
        OPTIMIZERS[case.optimizer],
        lambda t: peak * toy.lr_factor(t),
        [tuple(rows.to(device) for rows in batch(t)) for t in range(T)],
        toy.loss,
        lambda t, _: t if t < start else max(start, t - 1),
        correction,
        clip_norm=case.clip_norm,
        microbatches=case.microbatches,
        tied=tied,
    )
    names = [name for stage in stages for name, _ in stage.named_parameters()]
    return {n: w.cpu() for n, w in zip(names, versions[-1], strict=True)}, losses


def of_our_pipeline(case: Case, name: str, num_stages: int) -> Trained:
    """The same by the executor of a trial, with our optimizer of that name."""
    torch.set_num_threads(1)
    shape = {"num_stages": num_stages, "num_microbatches": case.microbatches}
    executor = toy.emulated(
        pipedream_2bw(T, **shape, synchronous_start=0, synchronous_cooldown=0),
        choices.optimizer_maker(name, lr=0.02),
        partial(ErrorFeedback, coefficient=case.error_feedback, lag=1),
        case.clip_norm,
        torch.float32,
        batch=tokens,
    )
    updates = toy.run(executor, (0, T))
    versions = [stage.versions for stage in executor._stages]
    weights = {n: w for of in versions for n, w in zip(of.names, of.master, strict=True)}
    return weights, [update.loss for update in updates]


def differences(trained: Trained, reference: Trained) -> list[str]:
    """Names of weights, and numbers of losses, that are not equal to the last bit."""
    (weights, losses), (right, right_losses) = trained, reference
    assert weights.keys() == right.keys()
    assert len(losses) == len(right_losses)
    unequal = [name for name in right if not torch.equal(weights[name], right[name])]
    pairs = enumerate(zip(losses, right_losses, strict=True))
    return unequal + [f"loss {t}" for t, (ours, theirs) in pairs if ours != theirs]
