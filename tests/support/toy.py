"""A small model in stages, its batches, and an emulated run of it."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.executors.emulated import Emulated
from pipegap.trainer.executors.executor import Clip, Update
from pipegap.trainer.optimizers.routing import kinds
from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.stages.backward import microbatches_of
from pipegap.trainer.stages.stage import Stage

VOCABULARY, WIDTH, BATCH, LENGTH = 11, 8, 12, 5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def modules(num_stages: int = 1, dtype: torch.dtype = torch.float64) -> list[nn.Module]:
    """The same four blocks, by the same names, whatever the number of stages: 1, 2 or 4."""
    torch.manual_seed(0)
    blocks: list[nn.Module] = [Block() for _ in range(4)]
    parts = [nn.Embedding(VOCABULARY, WIDTH), *blocks, nn.Linear(WIDTH, VOCABULARY)]
    size = 4 // num_stages
    cuts = [0, *range(1 + size, 5, size), 6]
    numbered = [(str(i), part) for i, part in enumerate(parts)]
    return [nn.Sequential(OrderedDict(numbered[a:b])).to(dtype) for a, b in pairwise(cuts)]


def batch(t: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 + t)
    return torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=generator)


def loss(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), targets.flatten())


def lr_factor(t: int) -> float:
    return 1 / (1 + t)


def emulated(
    schedule: Schedule,
    optimizer: Callable[..., torch.optim.Optimizer],
    correction: Callable[[int, Sequence[int]], NoCorrection] = NoCorrection,
    clip_norm: float = float("inf"),
    dtype: torch.dtype = torch.float64,
    leaf_dtype: torch.dtype | None = None,
    batch: Callable[[int], Tensor] = batch,
    num_replicas: int = 1,
) -> Emulated:
    stages = []
    for index, module in enumerate(modules(schedule.num_stages, dtype)):
        stages.append(
            Stage(
                module,
                kinds(module),
                optimizer,
                partial(correction, schedule.num_updates),
                lr_factor,
                lag=schedule.lags[index],
                tied=frozenset(),
                tied_lag=schedule.tied_lag,
                dtype=leaf_dtype or dtype,
                microbatch=microbatches_of(schedule),
            )
        )
    return Emulated(stages, schedule, batch, loss, Clip(clip_norm), num_replicas)


def run(executor: Emulated, marks: tuple[int, ...]) -> list[Update]:
    """Trains from drain to drain, and returns every update."""
    updates: list[Update] = []
    for first, last in pairwise(marks):
        executor.run(first, last, updates.append)
    return updates


def weights(executor: Emulated) -> list[Tensor]:
    return [master.clone() for stage in executor._stages for master in stage.versions.master]
