"""A true pipeline of two ranks, one core each, against torch.distributed.pipelining.

    python -m bench.pipelining [microbatches=4] [rounds=5]

The same model, microbatches, data, optimizer and global clip for all, in the same processes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from bench.timing import medians, table
from trainer.base.build import build
from trainer.base.resources import reproducible
from trainer.config.compose import compose
from trainer.data.batches import Batches, Windows
from trainer.data.tokens import Tokens
from trainer.models.loss import cross_entropy
from trainer.optimizers.routing import kinds
from trainer.parts import Parts, build_pipelined
from trainer.ranks.groups import Gang, Heartbeat, joined
from trainer.ranks.spawn import run_gang
from trainer.ranks.supervisor import Parent

RANKS, ROWS, LENGTH = 2, 2, 128
IN_A_ROW = 64
"""Microbatches that are timed together: a pipeline without flushes drains once."""
CPU = torch.device("cpu")
Run = Callable[[], object]
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


def ours(gang: Gang, num_microbatches: int, pipeline: str, *words: str) -> Run:
    """Our executor, from one drain to the next."""
    config, parts = prepare(num_microbatches, pipeline, *words)
    executor = build_pipelined(config, parts, gang)
    updates = IN_A_ROW // num_microbatches
    firsts = count(0, updates)

    def run() -> None:
        first = next(firsts)
        executor.run(first, first + updates, lambda update: None)

    return run


def theirs(
    num_microbatches: int,
    indices: Sequence[int],
    num_stages: int,
    make: Callable[[list[Any]], Any],
) -> Run:
    """Torch's schedule on the stages that this rank holds, with the loop that its users write."""
    config, parts = prepare(num_microbatches, "sync")
    split = parts.model.split(num_stages, LENGTH)
    modules = nn.ModuleList(parts.model.stage(index, split) for index in indices)
    for module in modules:
        parts.model.initialise(module, config["seed"])
    stages = [
        PipelineStage(module, index, num_stages, CPU)
        for module, index in zip(modules, indices, strict=True)
    ]
    kind, schedule = kinds(modules), make(stages)
    optimizer = build(config["optimizer"], [(kind[k], w) for k, w in modules.named_parameters()])
    is_first, is_last = any(s.is_first for s in stages), any(s.is_last for s in stages)
    batches = (parts.batches[t] for t in count())

    def update() -> None:
        batch = next(batches)
        inputs = (batch[:, :-1],) if is_first else ()
        targets: dict[str, Any] = {"target": batch[:, 1:], "losses": []} if is_last else {}
        schedule.step(*inputs, **targets, return_outputs=False)
        clip(list(modules.parameters()), config["clip_norm"])
        optimizer.step()
        optimizer.zero_grad()

    def run() -> None:
        for _ in range(IN_A_ROW // num_microbatches):
            update()

    return run


def clip(weights: list[nn.Parameter], max_norm: float) -> None:
    """By the norm of the whole model, for which every rank waits."""
    norm = get_total_norm([weight.grad for weight in weights if weight.grad is not None])
    square = norm.square()
    dist.all_reduce(square)
    clip_grads_with_norm_(weights, max_norm, square.sqrt())


def contenders(gang: Gang, m: int) -> dict[str, Run]:
    """All that is compared; torch's zero-bubble schedules need two stages per rank."""
    rank, two = gang.place, 2 * RANKS
    loss = cross_entropy
    return {
        "torch, Schedule1F1B": theirs(
            m, [rank], RANKS, lambda stages: Schedule1F1B(stages[0], m, loss_fn=loss)
        ),
        "torch, ScheduleInterleavedZeroBubble": theirs(
            m,
            [rank, rank + RANKS],
            two,
            lambda stages: ScheduleInterleavedZeroBubble(stages, m, loss_fn=loss),
        ),
        "torch, ScheduleZBVZeroBubble": theirs(
            m,
            [rank, two - 1 - rank],
            two,
            lambda stages: ScheduleZBVZeroBubble(stages, m, loss_fn=loss),
        ),
        "torch, ScheduleDualPipeV": theirs(
            m,
            [rank, two - 1 - rank],
            two,
            lambda stages: ScheduleDualPipeV(stages, m, loss_fn=loss),
        ),
        "pipegap, sync": ours(gang, m, "sync"),
        "pipegap, pipedream_2bw": ours(gang, m, "pipedream_2bw"),
    }


def as_rank(
    store: dist.Store,
    heartbeat: Heartbeat,
    send: Callable[[object], None],
    num_microbatches: int,
    rounds: int,
) -> None:
    """Times all contenders together with the other rank."""
    with reproducible(0, 1), joined(store, heartbeat.rank, RANKS, 1, CPU, heartbeat, 600) as gang:

        def with_others(run: Run) -> Run:
            def timed() -> None:
                heartbeat.beat()
                run()
                dist.barrier()  # the slowest rank's time is everyone's

            return timed

        runs = contenders(gang, num_microbatches)
        found = medians({name: with_others(run) for name, run in runs.items()}, rounds)
        if gang.records:
            send(found)


def main() -> None:
    """Prints the table."""
    given = dict(word.split("=") for word in sys.argv[1:])
    m, rounds = int(given.get("microbatches", "4")), int(given.get("rounds", "5"))

    def show(found: dict[str, float]) -> None:
        print(f"p = {RANKS}, m = {m}, {IN_A_ROW // m} updates in a row\n")
        print(table(found, "torch, Schedule1F1B", IN_A_ROW // m * 1e-3, "ms per update"))

    run_gang(as_rank, (m, rounds), RANKS, Parent(show, timeout=600))


if __name__ == "__main__":
    main()
