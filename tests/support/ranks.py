"""Gangs of ranks on this machine, a core each, that are timed together."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from pipegap.trainer.base.build import build
from pipegap.trainer.base.resources import rank_device, reproducible
from pipegap.trainer.config.compose import compose
from pipegap.trainer.data.batches import Batches, Windows
from pipegap.trainer.data.shards import Tokens
from pipegap.trainer.parts import Parts, build_pipelined
from pipegap.trainer.ranks.groups import Gang, Heartbeat, joined
from pipegap.trainer.ranks.spawn import run_gang
from pipegap.trainer.ranks.supervisor import Parent

RANKS, ROWS, LENGTH = 2, 2, 128
IN_A_ROW = 64
"""Microbatches that are timed together: a pipeline without flushes drains once."""
TIMEOUT = 600
CPU = torch.device("cpu")
WORDS = [
    "model.hidden_size=256",
    "model.num_layers=8",
    "model.num_heads=4",
    "model.num_kv_heads=4",
    "model.intermediate_size=704",
    "model.tied_embeddings=false",  # torch's pipelines know no tied weights
    "lr_schedule=constant",
    "runner=pipelined",
    f"seq_len={LENGTH}",
    f"pipeline.num_stages={RANKS}",
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
