"""WPipe: the first half of the model is one update late, the second is not, and fewer versions."""

from functools import partial

import pytest
import torch
from torch import nn

from tests.support import toy
from tests.support.delayed import PHASES
from trainer.optimizers.sgd import sgd
from trainer.schedules.operations import Op, Schedule
from trainer.schedules.recipes import wpipe

T, LR, M = 6, 0.2, 3
PLAIN = partial(sgd, lr=LR, momentum=0.0, nesterov=False, weight_decay=0.0, fused=False)


def schedule(num_stages: int = 1) -> Schedule:
    return wpipe(T, num_stages=num_stages, num_microbatches=M, **PHASES)


def test_it_trains_its_equation() -> None:
    """W₀(t+1) = W₀(t) − lr ∇₀ L(W₀(t−1), W₁(t)), and so for W₁ with ∇₁ at the same weights."""
    executor = toy.emulated(schedule(), PLAIN)
    toy.run(executor, (0, T))
    first, second = toy.modules(2)
    late = [w.detach().clone() for w in first.parameters()]
    for t in range(T):
        live = [w.detach().clone() for w in first.parameters()]
        nn.utils.vector_to_parameters(torch.cat([w.flatten() for w in late]), first.parameters())
        weights = [*first.parameters(), *second.parameters()]
        tokens = toy.batch(t)
        loss = toy.loss(second(first(tokens[:, :-1])), tokens[:, 1:])
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            torch._foreach_copy_([*first.parameters()], live)
            for w, g in zip(weights, gradients, strict=True):
                w.sub_(g, alpha=LR * toy.lr_factor(t))
        late = live
    for ours, theirs in zip(toy.weights(executor), weights, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_the_next_batch_enters_the_first_group_before_this_one_comes_back(num_stages: int) -> None:
    for ops in schedule(num_stages).operations(0, T):
        at = {op[:4]: i for i, op in enumerate(ops)}
        group = {op.stage: op.stage >= num_stages for op in ops}
        for (kind, stage, batch, microbatch), i in at.items():
            if kind == "F" and batch > 0:
                before = at["B", stage, batch - 1, microbatch] < i
                assert before == group[stage]


def test_the_second_group_keeps_one_version() -> None:
    assert schedule(3).lags == (1, 1, 1, 0, 0, 0)
    assert Op("F", 0, 1, 0, 0, 0) in schedule().operations(0, T)[0]
    assert Op("F", 1, 1, 0, 1, 0) in schedule().operations(0, T)[0]
