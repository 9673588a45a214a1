"""Schedule-Free trains at y, late or not, and is evaluated and exported at x, their average."""

import torch
from torch import nn

from tests.support import toy
from tests.support.delayed import PHASES
from tests.support.every_optimizer import maker
from trainer.schedules.recipes import pipedream_2bw

T, LR, BETA = 6, 0.02, 0.9
OPTIMIZER = maker("schedule_free_adamw", lr=LR, momentum=BETA, weight_decay=0.0)


def test_it_is_evaluated_at_the_average() -> None:
    """The equations of arXiv 2405.15682, the gradient of batch t taken at y of version t − 1."""
    schedule = pipedream_2bw(T, num_stages=2, num_microbatches=1, **PHASES)
    executor = toy.emulated(schedule, OPTIMIZER)
    rows = toy.batch(99)
    for first in range(T):
        toy.run(executor, (first, first + 1))
        before = toy.weights(executor)
        loss = executor.evaluate([rows])
        assert all(map(torch.equal, toy.weights(executor), before)), "looking changes nothing"

    model = nn.Sequential(*toy.modules(1)[0])
    parameters = list(model.parameters())
    x, z, v = ([p.detach().clone() for p in parameters] for _ in range(3))
    v = [torch.zeros_like(p) for p in v]
    ys, weight_sum = [[p.detach().clone() for p in parameters]], 0.0
    for t in range(T):
        load(parameters, ys[max(0, t - 1)])
        batch = toy.batch(t)
        gradients = torch.autograd.grad(toy.loss(model(batch[:, :-1]), batch[:, 1:]), parameters)
        lr = LR * toy.lr_factor(t)
        weight = LR**2  # of the largest learning rate so far, which is the first
        weight_sum += weight
        for i, g in enumerate(gradients):
            v[i] = 0.999 * v[i] + 0.001 * g**2
            z[i] = z[i] - lr * g / ((v[i] / (1 - 0.999 ** (t + 1))).sqrt() + 1e-8)
            x[i] = x[i] + weight / weight_sum * (z[i] - x[i])
        ys.append([(1 - BETA) * b + BETA * a for a, b in zip(x, z, strict=True)])

    load(parameters, x)
    expected = toy.loss(model(rows[:, :-1]), rows[:, 1:]).detach()
    assert abs(loss - float(expected)) < 1e-10
    exported = [t for stage in executor._stages for t in stage.weights().values()]
    for ours, average, y in zip(exported, x, toy.weights(executor), strict=True):
        torch.testing.assert_close(ours, average, rtol=1e-9, atol=1e-10)
        assert not torch.equal(ours, y)


def load(parameters: list[nn.Parameter], values: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)
