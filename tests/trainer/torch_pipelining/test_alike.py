"""What one rank alone can know ends the training of every rank, at the same update."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from pipegap.trainer.corrections.compensation import Taylor
from pipegap.trainer.executors.gradients import Diverged
from pipegap.trainer.ranks.groups import Heartbeat, joined
from pipegap.trainer.torch_pipelining import Schedule2BW
from tests.support.gangs import sent

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


CASES: dict[str, tuple[Callable[..., Tensor], Callable[[int], Any], str]] = {
    "GradScaler": (_scaled, _plain, "loss_fn=GradScaler.scale: must not scale"),
    "not finite": (_infinite, _plain, "the gradient of batch 1 is not finite"),
    "no gradient": (
        nn.functional.mse_loss,
        _one_is_unused,
        "a correction of gradients needs one of every",
    ),
    "tied to a frozen weight": (
        nn.functional.mse_loss,
        _one_is_frozen,
        "a tied weight got no gradient",
    ),
}


def as_rank(store: dist.Store, heartbeat: Heartbeat, send: Callable[[object], None]) -> None:
    """Sends, of each case, how far the rank came, and what stopped it."""
    torch.set_num_threads(1)
    for name, (bad_loss, stage_of, _) in CASES.items():
        own = dist.PrefixStore(name, store)
        with joined(own, heartbeat.rank, RANKS, 1, CPU, heartbeat, 60):
            send(stopped(heartbeat.rank, bad_loss, stage_of))


def stopped(
    rank: int,
    bad_loss: Callable[[Tensor, Tensor], Tensor],
    stage_of: Callable[[int], tuple[nn.Module, dict[str, Any]]],
) -> tuple[int, int, str]:
    """Batches taken and updates made until an error, and what it says."""
    (module, options), x = stage_of(rank), torch.ones(RANKS, 2)
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
        return schedule.num_taken, schedule.num_made, str(error)
    return schedule.num_taken, schedule.num_made, ""


def test_every_rank_refuses_alike() -> None:
    for (_, _, says), *ends in zip(CASES.values(), *sent(as_rank, RANKS), strict=True):
        assert len({*ends}) == 1, ends
        _, num_made, said = ends[0]
        assert num_made <= BAD_BATCH
        assert says in said
