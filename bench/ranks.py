"""Gangs of ranks on this machine, a core each, that are timed together."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from bench.timing import medians
from trainer.base.build import build
from trainer.base.resources import rank_device, reproducible
from trainer.config.compose import compose
from trainer.data.batches import Batches, Windows
from trainer.data.tokens import Tokens
from trainer.executors.gradients import Update
from trainer.executors.pipelined import Pipelined
from trainer.parts import Parts, build_pipelined
from trainer.ranks.collect import collect
from trainer.ranks.groups import Gang, Heartbeat, joined
from trainer.ranks.spawn import run_gang
from trainer.ranks.supervisor import Parent
from trainer.schedules.operations import Schedule
from trainer.tracing.trace import between, simulated

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

    With `device=cuda` each rank has a GPU of its own.
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
    own = rank_device(device, heartbeat.rank)
    if own.type == "cuda":
        torch.cuda.set_device(own)  # NCCL and new streams use the current device
    with reproducible(0, 1), joined(store, heartbeat.rank, *shape, own, heartbeat, TIMEOUT) as gang:
        program(gang, send, *arguments)


def medians_of_all(gang: Gang, runs: Mapping[str, Run], rounds: int) -> dict[str, float]:
    """Median seconds of each run, which all ranks begin and end together."""

    def with_others(run: Run) -> Run:
        def timed() -> None:
            gang.heartbeat.beat()
            run()
            dist.barrier()  # the slowest rank's time is everyone's

        return timed

    return medians({name: with_others(run) for name, run in runs.items()}, rounds)


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


class TracedRun(NamedTuple):
    """Seconds of one run from drain to drain; each rank's share of it spent waiting for updates."""

    measured: float
    simulated: float
    update_waits: tuple[float, ...]


class Traced:
    """A schedule on this rank, which trains on, `size` batches at a time.

    The executor's clock keeps spans. The simulator is given the mean time of each rank's F, B and U
    and the median time of a message, of the very same run.
    """

    def __init__(
        self,
        gang: Gang,
        schedule: Schedule,
        executor: Pipelined,
        size: int,
        on_update: Callable[[Update], None],
    ) -> None:
        self._gang, self._schedule, self._executor = gang, schedule, executor
        self._size, self._on_update, self._first = size, on_update, 0

    def run(self) -> TracedRun | None:
        """Trains on some batches; returns their times on the recording rank, None on others."""
        self._gang.heartbeat.beat()
        first, last = self._first, self._first + self._size
        self._first = last
        clock = self._executor._clock
        clock.spans.clear()
        dist.barrier()
        start = time.perf_counter()
        self._executor.run(first, last, self._on_update)
        dist.barrier()
        seconds = time.perf_counter() - start
        spans = [*collect(self._gang, [clock.spans])]
        if not spans:
            return None
        waits = tuple(
            sum(s.end - s.start for s in of_rank if s.kind == "wait U" and s.batch < last - 1)
            for of_rank in spans
        )
        expected = simulated(between(spans, first, last), self._schedule, first, last)
        return TracedRun(seconds, expected.makespan, waits)


def in_turn(contenders: Mapping[str, Traced], rounds: int) -> dict[str, list[TracedRun]]:
    """The runs of each contender, after one round that warms up; empty on other ranks."""
    runs: dict[str, list[TracedRun]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, contender in contenders.items():
            if (run := contender.run()) is not None and turn:
                runs[name].append(run)
    return runs
