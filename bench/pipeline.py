"""A true pipeline of two ranks, one core each, against torch.distributed.pipelining.

    python -m bench.pipeline [microbatches=4] [rounds=5]

All contenders have one model, microbatches, data, optimizer and global clip, and share processes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

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

from bench.timing import medians_of_all, options, table
from pipegap.trainer.base.build import build
from pipegap.trainer.models.layers import cross_entropy
from pipegap.trainer.optimizers.routing import kinds
from pipegap.trainer.ranks.groups import Gang
from tests.support.gangs import CPU, IN_A_ROW, RANKS, Run, Send, modules_of, on_ranks, ours, prepare


def theirs(
    num_microbatches: int, indices: Sequence[int], num_stages: int, make: Callable[[list[Any]], Any]
) -> Run:
    """Torch's schedule on the stages that this rank holds, with the loop that its users write."""
    config, parts = prepare(num_microbatches, "sync")
    modules = nn.ModuleList(modules_of(config, parts, num_stages, indices))
    stages = [
        PipelineStage(module, index, num_stages, CPU)
        for module, index in zip(modules, indices, strict=True)
    ]
    kind, schedule = kinds(modules), make(stages)
    optimizer = build(config["optimizer"], [(kind[k], w) for k, w in modules.named_parameters()])
    is_first, is_last = any(s.is_first for s in stages), any(s.is_last for s in stages)
    batches = (parts.batches[t] for t in count())  # every contender trains on the same ones

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
    """Clips the gradients by the norm of the whole model, for which every rank waits."""
    norm = get_total_norm([weight.grad for weight in weights if weight.grad is not None])
    square = norm.square()
    dist.all_reduce(square)  # squares of the ranks' norms add up to that of the whole
    clip_grads_with_norm_(weights, max_norm, square.sqrt())


def contenders(gang: Gang, m: int) -> dict[str, Run]:
    """All that is compared; torch's zero-bubble schedules need two stages per rank."""
    rank, two = gang.place, 2 * RANKS
    second_stages = {
        ScheduleInterleavedZeroBubble: rank + RANKS,
        ScheduleZBVZeroBubble: two - 1 - rank,
        ScheduleDualPipeV: two - 1 - rank,
    }
    keys: dict[str, Any] = {"n_microbatches": m, "loss_fn": cross_entropy}
    return {
        "torch, Schedule1F1B": theirs(m, [rank], RANKS, lambda s: Schedule1F1B(s[0], **keys)),
        **{
            f"torch, {schedule.__name__}": theirs(m, [rank, second], two, partial(schedule, **keys))
            for schedule, second in second_stages.items()
        },
        "pipegap, sync": ours(gang, m, "sync"),
        "pipegap, pipedream_2bw": ours(gang, m, "pipedream_2bw"),
    }


def compare(gang: Gang, send: Send, num_microbatches: int, rounds: int) -> None:
    """Times all contenders; the recording rank sends their medians."""
    seconds = medians_of_all(gang, contenders(gang, num_microbatches), rounds)
    if gang.records:
        send(seconds)


def main() -> None:
    """Prints the table."""
    values = options(microbatches=4, rounds=5)
    m = values.microbatches

    def show(seconds: dict[str, float]) -> None:
        print(f"p = {RANKS}, m = {m}, {IN_A_ROW // m} updates in a row\n")
        print(table(seconds, "torch, Schedule1F1B", IN_A_ROW // m * 1e-3, "ms per update"))

    on_ranks(compare, (m, values.rounds), show)


if __name__ == "__main__":
    main()
