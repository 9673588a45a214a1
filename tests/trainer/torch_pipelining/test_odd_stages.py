"""Stages that differ: without gradients or weights, of other dtypes, sparse, or one that fails."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from pipegap.trainer.ranks.groups import Heartbeat, joined
from pipegap.trainer.torch_pipelining import Schedule2BW
from pipegap.trainer.torch_pipelining.schedule import TAKES_TARGET
from tests.support.gangs import sent
from tests.support.torch_naive import (
    BATCHES,
    MICROBATCHES,
    RATE,
    ROWS,
    WIDTH,
    Block,
    assert_equal,
    batch,
    loss,
    naive,
    stages_of,
)

CPU, CLIP_NORM, TIMEOUT = torch.device("cpu"), 0.05, 45
ROWS_OF_TWO_SIZES = 6


class Sparse(nn.Module):
    """Rows by the sign of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(2, WIDTH, sparse=True, dtype=torch.float64)
        self.spread = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width], to the same."""
        return self.spread(self.rows((x[:, 0] > 0).long()) + x)


class Narrow(nn.Module):
    """In fp32 between a stage of fp64 and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Block().float()

    def forward(self, x: Tensor) -> Tensor:
        """[rows, width], to the same."""
        return self.inner(x.float()).double()


class Frozen(Block):
    """Whose dropout does nothing, as that of `Live`."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped.p = 0.0
        self.requires_grad_(False)


class Live(Frozen):
    """Which trains."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(True)


CASES: dict[str, tuple[type[nn.Module], type[nn.Module]]] = {
    "frozen first": (Frozen, Live),
    "frozen last": (Live, Frozen),
    "no weights first": (nn.Identity, Live),
    "no weights last": (Live, nn.Identity),
    "other dtypes": (Live, Narrow),
    "sparse": (Sparse, Live),
    "first fails once": (Live, Live),
    "last fails once": (Live, Live),
}
if not TAKES_TARGET:  # torch 2.11 asks every stage but the first for gradients
    del CASES["no weights last"]
FAILING = {"first fails once": 0, "last fails once": 1}
"""The rank whose first forward of the third batch does."""


class FailsOnce:
    """A hook of a module that raises once."""

    def __init__(self) -> None:
        self._calls = iter(range(BATCHES * MICROBATCHES + 1))

    def __call__(self, *_: object) -> None:
        if next(self._calls) == 2 * MICROBATCHES:
            raise torch.OutOfMemoryError


def train(rank: int, module: nn.Module) -> None:
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    step: Callable[[], Any] = torch.optim.SGD(weights, lr=RATE).step if weights else lambda: None

    def update() -> None:
        schedule.clip_grad_norm_(CLIP_NORM)
        step()

    stage = PipelineStage(module, rank, 2, CPU)
    schedule = Schedule2BW(stage, MICROBATCHES, loss, update=update)
    for t in range(BATCHES):
        x, y = batch(t)
        for _ in range(2):
            with suppress(RuntimeError):  # torch makes one of what a forward raises
                schedule.step(x) if rank == 0 else schedule.step(target=y)
                break
    with schedule.drained():
        schedule.state_dict()
    groups = [schedule._late.sums._group, *schedule._passes.neighbours._groups.values()]
    limits = {group._get_backend(CPU).options._timeout.total_seconds() for group in groups}
    assert limits == {TIMEOUT}, limits


def as_rank(store: dist.Store, heartbeat: Heartbeat, send: Callable[[object], None]) -> None:
    """Sends the trained stage of each case."""
    torch.set_num_threads(1)
    rank = heartbeat.rank
    with joined(store, rank, 2, 1, CPU, heartbeat, TIMEOUT):
        for name, makes in CASES.items():
            module = stages_of(*makes)[rank]
            if FAILING.get(name) == rank:
                module.register_forward_pre_hook(FailsOnce())
            train(rank, module)
            send(module.state_dict())


def test_odd_stages_train_by_the_equation() -> None:
    for (name, makes), *trained in zip(CASES.items(), *sent(as_rank, 2), strict=True):
        right, made = stages_of(*makes), stages_of(*makes)
        naive(right, {}, clip_norm=CLIP_NORM)
        for stage, state in zip(made, trained, strict=True):
            stage.load_state_dict(state)
        assert_equal(made, right, atol=1e-6 if name == "other dtypes" else 1e-12)


def as_rank_of_uneven(
    store: dist.Store, heartbeat: Heartbeat, send: Callable[[object], None]
) -> None:
    """Sends what ends the second batch, whose last microbatches are shorter than the others."""
    rank, said = heartbeat.rank, ""
    with joined(store, rank, 2, 1, CPU, heartbeat, TIMEOUT):
        module = stages_of(Frozen, Live)[rank]
        stage = PipelineStage(module, rank, 2, CPU)
        schedule = Schedule2BW(stage, MICROBATCHES, loss, update=module.zero_grad)
        try:
            for t, rows in enumerate((ROWS, ROWS_OF_TWO_SIZES)):
                x, y = (of[:rows] for of in batch(t))
                schedule.step(x) if rank == 0 else schedule.step(target=y)
        except RuntimeError as error:
            said = str(error)
    send(said)


def test_microbatches_of_two_sizes() -> None:
    """The first one fits into the buffers; no gradient comes back that would not fit either."""
    [[said], _] = sent(as_rank_of_uneven, 2)
    assert said.startswith("the stage returns [(1, 4, torch.float64)], and returned [(2, 4,")
    assert "\n" not in said
