"""One rank of a true pipeline on a fake GPU; its peers are torch's fake process group."""

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from typing_extensions import override

from pipegap.trainer.base.build import build
from pipegap.trainer.base.resources import reproducible
from pipegap.trainer.config.work import peak_bytes
from pipegap.trainer.executors.pipelined import Pipelined
from pipegap.trainer.optimizers.routing import BALANCE
from pipegap.trainer.parts import Parts, build_pipelined, empty_stage
from pipegap.trainer.ranks import groups
from pipegap.trainer.ranks.groups import Gang, Heartbeat
from tests.support.fake_cuda.gpu import FakeGPU
from tests.support.fake_cuda.trials import Facts, facts_of
from tests.support.steps import UPDATES, RandomTokens, resolved


class AloneInGang(Gang):
    """A rank whose peers do not answer: what they would say of their weights is told it."""

    names: Sequence[Any] = ()

    @override
    def all_gather(self, mine: object) -> list[Any]:
        return [dict(enumerate(self.names))]


class AtOnce:
    """Does the work of a thread when it is given, in the thread that watches the device."""

    def __init__(self, *settings: object) -> None: ...

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        """Returns the result of `work`, which is there."""
        future: Future[Any] = Future()
        future.set_result(work(*args))
        return future


def looked_at(words: Sequence[str], rank: int, updates: int, saves: bool = False) -> Facts:
    """What an update by itself, then `updates` updates between two drains do on a rank of a trial
    with these `words`, and then, if it `saves`, its part of a checkpoint: see `facts_of`."""
    gpu = FakeGPU()
    config = resolved([*words, "device=cuda", "runner=pipelined"])
    error = None
    try:
        with gpu, reproducible(0, 1, config["deterministic"]), peers(rank, config):
            executor = _executor(config, rank)
            gpu.begin("first update")
            executor.run(0, 1, lambda update: None)
            gpu.begin("updates")
            executor.run(1, 1 + updates, lambda update: None)
            if saves:
                gpu.begin("checkpoint")
                with mock.patch.object(groups, "collect", _sent):
                    executor.state()
    except Exception:
        error = traceback.format_exc()
    return {"error": error, "planned": peak_bytes(config, UPDATES), **facts_of(gpu)}


@contextmanager
def peers(rank: int, config: Facts) -> Iterator[None]:
    """The process groups of a gang while the context lasts."""
    world = config["num_replicas"] * build(config["pipeline"], UPDATES).num_ranks
    new_group = dist.new_group
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    fakes = {
        "torch.distributed.new_group": lambda members, **_: new_group(members, backend="fake"),
        "pipegap.trainer.executors.pipelined.ThreadPoolExecutor": AtOnce,
    }
    try:
        with mock.patch.multiple(AloneInGang, names=names_of(config)):
            stack = [mock.patch(target, value) for target, value in fakes.items()]
            with stack[0], stack[1]:
                yield
    finally:
        dist.destroy_process_group()


def names_of(config: Facts) -> list[list[str | None]]:
    """By stage what `Stage.slots` says."""
    model, schedule = build(config["model"]), build(config["pipeline"], UPDATES)
    split = model.split(schedule.num_stages, config["seq_len"])
    stages = [empty_stage(model, index, split) for index in range(schedule.num_stages)]
    return [
        [None if kind == BALANCE else name for name, kind in model.kinds(stage).items()]
        for stage in stages
    ]


def _sent(gang: Gang, mine: Iterable[object]) -> list[Any]:
    """Sends each object, and gets none of the peers."""
    deque(mine, maxlen=0)
    return []


def _executor(config: Facts, rank: int) -> Pipelined:
    schedule = build(config["pipeline"], UPDATES)
    heartbeat = Heartbeat([0.0] * (rank + 1), rank, [0])
    device, limit = torch.device("cuda"), timedelta(seconds=60)
    gang = AloneInGang(rank, schedule.num_ranks, config["num_replicas"], device, heartbeat, limit)
    tokens: Any = RandomTokens(config)
    parts = Parts(build(config["model"]), schedule, lambda t: 1.0, tokens, [])  # type: ignore[arg-type]
    return build_pipelined(config, parts, gang)
