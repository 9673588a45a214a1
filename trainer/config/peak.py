"""The most memory that a rank will have in use in an update, counted along its operations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch

from trainer.base.build import build, locate
from trainer.base.flat import LARGEST
from trainer.config.activations import kept_bytes
from trainer.config.memory import (
    FP32,
    Weight,
    largest_rank,
    loss_bytes,
    num_entries,
    weights_of,
)
from trainer.optimizers.routing import is_entrywise
from trainer.schedules.operations import Op, Schedule
from trainer.schedules.proof import interleave

WALKED = 3
"""Batches of each phase whose operations are followed; later ones repeat them."""


@dataclass(frozen=True)
class _Costs:
    """Bytes of each stage, beside weights and states.

    A microbatch has `kept` until its backward, which has `loss` beside at its start on the last
    stage, then `again`, and `gradients` at its end. An update has `update` beside.
    """

    kept: tuple[int, ...]
    again: tuple[int, ...]
    gradients: tuple[int, ...]
    update: tuple[int, ...]
    loss: int


def peak_bytes(config: Mapping[str, Any], num_updates: int) -> int:
    """Return the most bytes that any rank of a validated config has in use in any of its updates.

    Counted are weights, gradients and states (`largest_rank`), what microbatches keep between
    forward and backward, the loss, recomputed layers, and what the optimizer makes on the way (see
    `_on_the_way`). Not counted are the context of the GPU and its libraries (about 1 GB), messages
    between ranks, and holes between blocks of memory. Raises what torch raises, most often
    NotImplementedError or RuntimeError, if a model reads numbers in its forward.
    """
    model, schedule = build(config["model"]), build(config["pipeline"], num_updates)
    correction = build(config["correction"], num_updates, schedule.lags)
    is_true = config["runner"] != "emulated"
    kept, again = kept_bytes(config, schedule.num_stages)
    itemsize = getattr(torch, config["dtype"]).itemsize
    stages = weights_of(config["model"], schedule.num_stages, config["seq_len"])
    entries = list(map(num_entries, stages))
    times = 1 if is_true else config["num_replicas"]
    by_vector = is_entrywise(locate(config["optimizer"]["_target_"]))
    costs = _Costs(
        kept=tuple(times * number for number in kept),
        again=tuple(again),
        gradients=tuple(itemsize * number for number in entries),
        update=tuple(
            FP32 * (correction.needs_update * num_entries(s) + _on_the_way(s, by_vector=by_vector))
            for s in stages
        ),
        loss=loss_bytes(config, model),
    )
    waiting = 0 if is_true else FP32 * sum(entries) * (times - 1)
    return largest_rank(config, schedule, correction) + waiting + _beside(schedule, costs, is_true)


def _on_the_way(stage: Sequence[Weight], *, by_vector: bool) -> int:
    """The fp32 numbers that an optimizer makes in a step and drops.

    One that steps the stage's vectors (`trainer.base.flat`) drops about three of one vector, as
    Adam does, before the next vector. Another is taken to make one number per weight: Muon makes
    1.1 of the whole model at 2b.
    """
    if not by_vector:
        return num_entries(stage)
    return 3 * max(min(LARGEST, num_entries(stage)), *(weight.size for weight in stage))


@cache
def _beside(schedule: Schedule, costs: _Costs, is_true: bool) -> int:
    """The most bytes in use on one rank beside weights, gradients and states."""
    return max(
        level
        for first, last in pairwise(schedule.phases)
        for ops in _lists(schedule.operations(first, min(last, first + WALKED)), is_true)
        for level in _levels(ops, costs, schedule.num_stages - 1)
    )


def _lists(operations: Sequence[Sequence[Op]], is_true: bool) -> list[list[Op]]:
    """The operations of each process."""
    return [*map(list, operations)] if is_true else [[op for _, op in interleave(operations)]]


def _levels(ops: Sequence[Op], costs: _Costs, last: int) -> Iterator[int]:
    """Yields the bytes in use during each operation of one process."""
    living = 0
    for op in ops:
        if op.kind == "F":
            living += costs.kept[op.stage]
        if op.kind in ("F", "B", "I"):
            yield living + max(costs.again[op.stage], costs.loss * (op.stage == last))
        if op.kind in ("B", "I"):
            living -= costs.kept[op.stage]
        yield living + costs.update[op.stage] * (op.kind == "U")
        yield living + costs.gradients[op.stage] * (op.kind in ("B", "W"))
