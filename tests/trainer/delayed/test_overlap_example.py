"""examples/overlap/all_reduce.py: what it hides changes no loss, and is hidden."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

from examples.overlap.all_reduce import RANKS, ROWS, WIDTH, train
from pipegap.trainer.ranks.groups import Heartbeat
from tests.support.gangs import sent

UPDATES, LINK = 6, 0.3


def as_rank(store: dist.Store, heartbeat: Heartbeat, send: Callable[[object], None]) -> None:
    dist.init_process_group("gloo", store=store, rank=heartbeat.rank, world_size=RANKS)
    for delay, link, at_once in ((0, LINK, False), (1, LINK, False), (1, 0.0, True)):
        send(tuple(train(delay, link, UPDATES, at_once=at_once)))
    dist.destroy_process_group()


def naive(delay: int) -> list[float]:
    """Both ranks' mean gradient at W(max(0, t − delay)), and Error Feedback by its equation:
    W(t + 1) = W(t) − u_t − (u_t − u_{t−1}) where the gradient is late."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    weights = [*model.parameters()]
    adamw = torch.optim.AdamW(weights, lr=0.002)
    versions, last, losses = [[w.detach().clone() for w in weights]], None, []

    def put(version: int) -> None:
        for weight, content in zip(weights, versions[version], strict=True):
            weight.data.copy_(content)

    for t in range(UPDATES):
        put(max(0, t - delay))
        total = torch.zeros(())
        for rank in range(RANKS):
            generator = torch.Generator().manual_seed(t * RANKS + rank)
            x = torch.randn(ROWS, WIDTH, generator=generator)
            total = total + mse_loss(model(x), x[:, :8].sin().sum(1, keepdim=True)) / RANKS
        adamw.zero_grad()
        total.backward()
        losses.append(total.item())
        put(t)
        adamw.step()
        update = [before - w.detach() for before, w in zip(versions[t], weights, strict=True)]
        if last is not None and delay:
            for weight, now, before in zip(weights, update, last, strict=True):
                weight.data.sub_(now - before)
        versions.append([w.detach().clone() for w in weights])
        last = update
    return losses


def test_a_late_step_hides_its_sum() -> None:
    """It is waited for at once by both blocking runs, and after the next backward by the other."""
    runs, others = sent(as_rank, RANKS, timeout=600)
    blocking, overlapped, late = runs
    assert overlapped[0] == late[0]
    assert [run[0] for run in others] == [run[0] for run in runs]
    assert blocking[0] == pytest.approx(naive(0), rel=1e-5)
    assert overlapped[0] == pytest.approx(naive(1), rel=1e-5)
    assert blocking[0][2:] != overlapped[0][2:]
    assert overlapped[2] < blocking[2]
