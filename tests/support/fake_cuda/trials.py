"""What is done on a fake GPU, and what it saw: a trial's executor, without a folder and data; a
rank of a true pipeline, whose peers are torch's fake process group; what a rank sends to be
saved.
"""

import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from typing_extensions import override

from pipegap.trainer.base.build import build
from pipegap.trainer.base.resources import on_cpu, reproducible
from pipegap.trainer.config.work import peak_bytes
from pipegap.trainer.executors.emulated import Emulated
from pipegap.trainer.executors.pipelined import Pipelined
from pipegap.trainer.optimizers.routing import BALANCE
from pipegap.trainer.parts import Parts, build_pipelined, empty_stage
from pipegap.trainer.ranks import groups
from pipegap.trainer.ranks.groups import Gang, Heartbeat
from tests.support.fake_cuda.gpu import FakeGPU
from tests.support.steps import UPDATES, RandomTokens, executor, resolved

Facts = dict[str, Any]


def trial_facts(words: Sequence[str], updates: int, whole: bool) -> Facts:
    """What `updates` updates of a trial with these `words` do on a GPU: see `facts_of`.

    A `whole` trial also evaluates, compares an update with its fresh one, and restores a
    checkpoint.
    """
    gpu = FakeGPU()
    config = resolved([*words, "device=cuda"])
    error = None
    try:
        with gpu, reproducible(0, 1, config["deterministic"]):
            _run(gpu, config, executor(config), updates, whole)
    except Exception:
        error = traceback.format_exc()
    return {"error": error, "planned": peak_bytes(config, UPDATES), **facts_of(gpu)}


def facts_of(gpu: FakeGPU) -> Facts:
    """What the GPU saw, by part of the run, as plain data."""
    gpu.begin("")
    waits: dict[str, Facts] = {}
    for (part, why), number in gpu.waits.items():
        waits.setdefault(part, {})[why] = number
    by_part: dict[str, Counter[str]] = {}
    for (part, doing), number in gpu.launches.items():
        by_part.setdefault(part, Counter())[doing] += number
    return {
        "waits": waits,
        "by_part": by_part,
        "peaks": gpu.peaks,
        "mixed": dict(gpu.mixed),
        "refused": dict(gpu.refused),
    }


def _run(gpu: FakeGPU, config: Facts, executor: Emulated, updates: int, whole: bool) -> None:
    for t in range(updates):
        gpu.begin(f"update {t}")
        executor.run(t, t + 1, lambda update: None)
    if not whole:
        return
    gpu.begin("evaluation")
    executor.evaluate([_windows(config).to("cuda")])
    gpu.begin("comparison")
    executor.probe(updates)
    executor.run(updates, updates + 1, lambda update: None)
    executor.take_comparison()
    gpu.begin("checkpoint")
    executor.weights()
    executor.restore(on_cpu(executor.state()))  # as a file is read
    gpu.begin("update after it")
    executor.run(updates + 1, updates + 2, lambda update: None)


def _windows(config: Facts) -> Tensor:
    shape = min(config["eval_batch_size"], 32), config["seq_len"] + 1
    return torch.randint(0, config["model"]["vocab_size"], shape)


# One rank of a true pipeline on a fake GPU; its peers are torch's fake process group.


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


def rank_facts(words: Sequence[str], rank: int, updates: int, saves: bool = False) -> Facts:
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


# What a rank with a fake GPU sends when the gang is saved.


def gang_state_facts() -> dict[str, Any]:
    """The devices of the tensors that are sent, and whether two that share memory still do."""
    sent: list[Any] = []
    gpu = FakeGPU()
    with gpu:
        weight, momentum = torch.ones(4, 4, device="cuda"), torch.ones(4, device="cuda")
        step, slots = torch.ones(()), [weight.view(4, 4)]
        state = {"w": {"master": weight, "slots": slots, "optimizer": [momentum, 3, step]}}
        executor = Pipelined.__new__(Pipelined)
        executor._stages = [SimpleNamespace(state=lambda: state)]
        executor._gang, executor._spill = SimpleNamespace(replica=0), Path()
        with mock.patch.object(groups, "collect", lambda gang, items: sent.extend(items) or []):
            executor.state()
        [(_, of_weight)] = sent
        tensors = of_weight["master"], of_weight["slots"][0], of_weight["optimizer"][0]
        return {
            "devices": [tensor.device.type for tensor in tensors],
            "is_shared": tensors[0] is tensors[1],
            "others": of_weight["optimizer"][1:2],
        }
