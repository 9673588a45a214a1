"""What one rank alone can know ends the training of every rank, at the same update."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from pipegap.trainer.corrections.compensation import Taylor
from pipegap.trainer.executors.gradients import Diverged
from pipegap.trainer.ranks.groups import Heartbeat, joined
from pipegap.trainer.ranks.spawn import run_gang
from pipegap.trainer.ranks.supervisor import Parent
from pipegap.trainer.torch_pipelining import Schedule2BW

RANKS, BAD_BATCH = 3, 1
CPU = torch.device("cpu")


def _scaled(output: Tensor, target: Tensor) -> Tensor:
    scaled: Tensor = torch.amp.GradScaler("cpu").scale(nn.functional.mse_loss(output, target))
    return scaled


def _infinite(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, target) * torch.inf


def _plain(rank: int) -> tuple[nn.Module, dict[str, Any]]:
    return nn.Linear(2, 2), {}


def _one_is_unused(rank: int) -> tuple[nn.Module, dict[str, Any]]:
    module = nn.Linear(2, 2)
    if rank == 1:
        module.unused = nn.Parameter(torch.ones(2))
    return module, {"correction": partial(Taylor, coefficient=0.1, decay=0.9), "num_updates": 4}


def _one_is_frozen(rank: int) -> tuple[nn.Module, dict[str, Any]]:
    module = nn.Linear(2, 2)
    if rank == RANKS - 1:
        module.weight.requires_grad_(False)
    return module, {"tied": ["weight"]} if rank in (0, RANKS - 1) else {}


def as_rank(
    store: dist.Store,
    heartbeat: Heartbeat,
    send: Callable[[object], None],
    bad_loss: Callable[[Tensor, Tensor], Tensor],
    stage_of: Callable[[int], tuple[nn.Module, dict[str, Any]]],
) -> None:
    """Sends how far the rank came, and what stopped it."""
    torch.set_num_threads(1)
    rank, x = heartbeat.rank, torch.ones(RANKS, 2)
    with joined(store, rank, RANKS, 1, CPU, heartbeat, 60):
        module, options = stage_of(rank)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

        def loss(output: Tensor, target: Tensor) -> Tensor:
            is_bad = schedule.num_taken > BAD_BATCH  # counted before its forwards
            return (bad_loss if is_bad else nn.functional.mse_loss)(output, target)

        schedule = Schedule2BW(
            PipelineStage(module, rank, RANKS, CPU), RANKS, loss, update=optimizer.step, **options
        )
        inputs = (x,) if rank == 0 else ()
        try:
            for _ in range(4):
                schedule.step(*inputs, target=x if rank == RANKS - 1 else None)
        except (ValueError, RuntimeError, Diverged) as error:
            send((rank, schedule.num_taken, schedule.num_made, str(error)))


@pytest.mark.parametrize(
    ("bad_loss", "stage_of", "says"),
    [
        (_scaled, _plain, "loss_fn=GradScaler.scale: must not scale"),
        (_infinite, _plain, "the gradient of batch 1 is not finite"),
        (nn.functional.mse_loss, _one_is_unused, "a correction of gradients needs one of every"),
        (nn.functional.mse_loss, _one_is_frozen, "a tied weight got no gradient"),
    ],
    ids=["GradScaler", "not finite", "no gradient", "tied to a frozen weight"],
)
def test_every_rank_refuses_alike(
    bad_loss: Callable[..., Tensor], stage_of: Callable[..., Any], says: str
) -> None:
    ends: dict[int, tuple[int, int, str]] = {}

    def on_message(message: tuple[int, int, int, str]) -> None:
        ends[message[0]] = message[1:]

    run_gang(as_rank, (bad_loss, stage_of), RANKS, Parent(on_message, timeout=60))
    assert len(ends) == RANKS
    assert len({*ends.values()}) == 1, ends
    _, num_made, said = ends[0]
    assert num_made <= BAD_BATCH
    assert says in said
