"""Gangs of ranks on this machine, a core each, that are timed together."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, islice, pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipegap.trainer.base.build import build
from pipegap.trainer.base.resources import rank_device, reproducible
from pipegap.trainer.config.compose import compose
from pipegap.trainer.data.batches import Batches, Windows
from pipegap.trainer.data.shards import Tokens
from pipegap.trainer.executors.channel import POSTED_EARLY
from pipegap.trainer.executors.emulated import Emulated
from pipegap.trainer.executors.executor import Diverged, Update
from pipegap.trainer.executors.pipelined import Pipelined
from pipegap.trainer.parts import Parts, build_emulated, build_parts, build_pipelined
from pipegap.trainer.ranks.groups import Gang, Heartbeat, joined
from pipegap.trainer.ranks.spawn import Parent, run_gang
from tests.support.gpu_rules import BETWEEN_PASSES, PASSES, lazy_kernels, nccl_like

RANKS, ROWS, LENGTH = 2, 2, 128
IN_A_ROW = 64
"""Microbatches that are timed together: a pipeline without flushes drains once."""
TIMEOUT = 600
CPU = torch.device("cpu")
WORDS = [
    *("model.hidden_size=256", "model.num_layers=8", "model.num_heads=4", "model.num_kv_heads=4"),
    *("model.intermediate_size=704", "lr_schedule=constant", "runner=pipelined"),
    "model.tied_embeddings=false",  # torch's pipelines know no tied weights
    *(f"seq_len={LENGTH}", f"pipeline.num_stages={RANKS}"),
]
Run = Callable[[], object]
Send = Callable[[Any], None]
Program = Callable[..., None]
"""Called on each rank with its gang, a function that sends a message to the parent, and more."""


def on_ranks(
    program: Program,
    arguments: Sequence[object],
    receive: Send,
    num_stages: int = RANKS,
    num_replicas: int = 1,
    device: str = "cpu",
) -> None:
    """Runs `program` on every rank of a new gang; `receive` gets what the ranks send.

    With `device=cuda` each rank has a GPU of its own, with `cuda:0` they share one.
    """
    shape = num_stages, num_replicas
    parent = Parent(receive, timeout=TIMEOUT)
    run_gang(_as_rank, (program, shape, device, arguments), num_stages * num_replicas, parent)


def _as_rank(
    store: dist.Store,
    heartbeat: Heartbeat,
    send: Send,
    program: Program,
    shape: tuple[int, int],
    device: str,
    arguments: Sequence[object],
) -> None:
    own = rank_device(device, heartbeat.rank, shape[0] * shape[1])
    with reproducible(0, 1), joined(store, heartbeat.rank, *shape, own, heartbeat, TIMEOUT) as gang:
        program(gang, send, *arguments)


def prepare(num_microbatches: int, pipeline: str, *words: str) -> tuple[dict[str, Any], Parts]:
    """A config and its parts, over random bytes: the time does not depend on what they say."""
    shape = [
        f"batch_size={ROWS * num_microbatches}",
        f"pipeline.num_microbatches={num_microbatches}",
    ]
    config = compose([*WORDS, *shape, f"pipeline={pipeline}", *words])
    drawn = np.random.default_rng(0).integers(0, 256, 1_000_000, dtype=np.uint16)
    tokens = Tokens([drawn])
    batches = Batches(tokens, seed=0, batch_size=config["batch_size"], seq_len=LENGTH)
    schedule = build(config["pipeline"], 1_000_000)
    model, validation = build(config["model"]), Windows(tokens, LENGTH)
    return config, Parts(model, schedule, lambda t: 1.0, batches, validation)


def modules_of(
    config: dict[str, Any], parts: Parts, num_stages: int, indices: Sequence[int]
) -> list[nn.Module]:
    """The stages of these numbers, initialised, of the model cut into so many."""
    split = parts.model.split(num_stages, LENGTH)
    modules = [parts.model.stage(index, split) for index in indices]
    for module in modules:
        parts.model.initialise(module, config["seed"])
    return modules


def ours(
    gang: Gang, num_microbatches: int, pipeline: str, *words: str, updates: int | None = None
) -> Run:
    """Our executor, from one drain to the next: `updates`, or as many as are timed together."""
    config, parts = prepare(num_microbatches, pipeline, *words)
    executor = build_pipelined(config, parts, gang)
    number = updates or IN_A_ROW // num_microbatches
    firsts = count(0, number)

    def run() -> None:
        first = next(firsts)
        executor.run(first, first + number, lambda update: None)

    return run


# Trains configs as a true pipeline and as its emulation, and hands back all numbers.

Config = dict[str, Any]


def sent(
    program: Callable[..., None], num_ranks: int, *arguments: object, timeout: float = 60
) -> list[list[Any]]:
    """What each rank of a new gang sends. It runs `program(store, heartbeat, send, *arguments)`."""
    by_rank: list[list[Any]] = [[] for _ in range(num_ranks)]

    def on_message(message: tuple[int, bytes]) -> None:
        by_rank[message[0]].append(pickle.loads(message[1]))

    run_gang(_as_rank_of_gangs, (program, arguments), num_ranks, Parent(on_message, timeout))
    return by_rank


def _as_rank_of_gangs(
    store: dist.Store,
    heartbeat: Heartbeat,
    send: Send,
    program: Callable[..., None],
    arguments: Sequence[object],
) -> None:
    def pickled(what: object) -> None:  # tensors would be passed by memory that ends with the rank
        send((heartbeat.rank, pickle.dumps(what)))

    program(store, heartbeat, pickled, *arguments)


@dataclass
class Numbers:
    """All that two executions must agree on, to the last bit."""

    updates: list[Update]
    val_loss: float | None
    weights: dict[str, Tensor]
    diverged: int | None


def train(executor: Emulated | Pipelined, parts: Parts) -> Numbers:
    """Every phase, a drain in the middle of each, an evaluation at the end."""
    updates: list[Update] = []
    marks = sorted({*parts.schedule.phases, parts.schedule.num_updates // 2})
    try:
        for first, last in pairwise(marks):
            executor.run(first, last, updates.append)
    except Diverged as diverged:
        return Numbers(updates, None, _on_cpu(executor.weights()), diverged.batch)
    device = executor.stages[0].versions.master[0].device
    validation = islice(parts.validation.batches(8), 2)
    val_loss = executor.evaluate([batch.to(device) for batch in validation])
    return Numbers(updates, val_loss, _on_cpu(executor.weights()), None)


def _on_cpu(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight.cpu() for name, weight in weights.items()}


def emulated(config: Config) -> Numbers:
    device = rank_device(config["device"], 0, 1)
    with reproducible(0, 1):
        parts = build_parts(config, config["num_updates"])
        return train(build_emulated(config, parts, device), parts)


def as_rank(store: dist.Store, heartbeat: Heartbeat, send: Send, configs: Sequence[Config]) -> None:
    p, replicas = configs[0]["pipeline"]["num_stages"], configs[0]["num_replicas"]
    device = rank_device(configs[0]["device"], heartbeat.rank, p * replicas)
    group = joined(store, heartbeat.rank, p, replicas, device, heartbeat, 60)
    with reproducible(0, 1), group as gang:
        for config in configs:
            parts = build_parts(config, config["num_updates"])
            send(train(build_pipelined(config, parts, gang), parts))


def as_rank_of_many(
    store: dist.Store, heartbeat: Heartbeat, send: Send, configs: Sequence[Config]
) -> None:
    """Like `as_rank`, with a gang for each config, under the rules of NCCL and of late kernels."""
    for i, config in enumerate(configs):
        inner = dist.PrefixStore(str(i), store)
        # wpipe updates while neighbours have messages for each other: there none may be loaded.
        is_wpipe = config["pipeline"]["_target_"].endswith(".wpipe")
        with (
            patch.dict(POSTED_EARLY, cpu=POSTED_EARLY["cuda"]),
            nccl_like(dist.PrefixStore("nccl", inner), heartbeat.rank),
            lazy_kernels(PASSES, [] if is_wpipe else BETWEEN_PASSES),
        ):
            as_rank(inner, heartbeat, send, [config])


def pipelined(
    configs: Sequence[Config], program: Callable[..., None] = as_rank
) -> list[list[Numbers]]:
    """One gang for all configs, which share its shape; for each what every rank found."""
    world = configs[0]["pipeline"]["num_stages"] * configs[0]["num_replicas"]
    return [[*of_config] for of_config in zip(*sent(program, world, configs), strict=True)]


def all_equal(configs: Sequence[Config], program: Callable[..., None] = as_rank) -> list[Numbers]:
    """What each config gives as a true pipeline and, bit for bit, emulated."""
    every = pipelined(configs, program)
    return [assert_equal(config, ranks) for config, ranks in zip(configs, every, strict=True)]


def assert_equal(config: Config, ranks: Sequence[Numbers]) -> Numbers:
    """The emulation's losses, norms, validation loss and weights, bit for bit."""
    expected = emulated(config)
    for rank in ranks:
        assert rank.updates == expected.updates
        assert (rank.val_loss, rank.diverged) == (expected.val_loss, expected.diverged)
    recorded = ranks[0].weights
    assert recorded.keys() == expected.weights.keys()
    for name, weight in expected.weights.items():
        assert torch.equal(recorded[name], weight), name
    return expected
