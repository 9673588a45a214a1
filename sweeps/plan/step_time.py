"""The seconds of a trial that nobody has measured: its counted work at a device's rates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sweeps.plan.devices import Device, device_of
from trainer.base.build import build
from trainer.base.code import use_code
from trainer.config.plan import FORWARD, Plan, which_optimizer
from trainer.config.step import StageWork, step, traffic
from trainer.corrections.none import NoCorrection
from trainer.models.recipe import Recipe
from trainer.schedules.operations import Schedule
from trainer.schedules.simulate import steady

KEYS = (
    *("model", "optimizer", "pipeline", "correction", "code", "runner", "num_replicas", "device"),
    *("batch_size", "seq_len", "dtype", "eval_dtype", "compile"),
)
"""What the seconds of an update and of an evaluation depend on; of the optimizer, which it is."""

Config = Mapping[str, Any]


def counted_seconds(config: Config, plan: Plan) -> float:
    """Seconds of training and evaluation, each process with a core or a GPU of its own."""
    counted = {key: config[key] for key in KEYS} | which_optimizer(config)
    of_update, of_forward = _counted(json.dumps(counted, sort_keys=True), plan.num_updates)
    evaluated = plan.evaluation_flops / (FORWARD * plan.flops)  # tokens, over those of training
    return plan.num_updates * (of_update + of_forward * evaluated)


@cache
def _counted(node: str, num_updates: int) -> tuple[float, float]:
    config = json.loads(node)
    use_code(config["code"])
    return of_update_and_forward(config, num_updates, device_of(config))


def of_update_and_forward(config: Config, num_updates: int, device: Device) -> tuple[float, float]:
    """Seconds of an update, and of a forward in evaluation of as many tokens."""
    model: Recipe = build(config["model"])
    schedule: Schedule = build(config["pipeline"], num_updates)
    correction: NoCorrection = build(config["correction"], num_updates, schedule.lags)
    evaluates = {**config, "dtype": config["eval_dtype"]}
    stages, evaluated = (step(given, model, schedule, correction) for given in (config, evaluates))
    ranks = _by_rank(config, schedule)
    forward = max(FORWARD * _passes(device, evaluates, evaluated, of_rank) for of_rank in ranks)
    updates = [
        device.seconds((work for s in of_rank for work in stages[s].update.values()), "float32")
        for of_rank in ranks
    ]
    passes = [_passes(device, config, stages, of_rank) for of_rank in ranks]
    if len(ranks) == 1:
        return passes[0] + updates[0], forward
    between = traffic(config, model, schedule)
    operations = schedule.num_microbatches * schedule.num_chunks
    costs = [_costs(of / operations, u) for of, u in zip(passes, updates, strict=True)]
    of_batch, _ = steady(schedule, costs, device.transfer(between.message))
    return of_batch + device.transfer(between.sums), forward


def _by_rank(config: Config, schedule: Schedule) -> list[Sequence[int]]:
    """The stages of each process of one replica."""
    if config["runner"] == "emulated":
        return [range(schedule.num_stages)]
    return [schedule.stages(rank) for rank in range(schedule.num_ranks)]


def _passes(
    device: Device, config: Config, stages: Sequence[StageWork], of_rank: Sequence[int]
) -> float:
    """Seconds of forward and backward through these stages."""
    parts = (work for s in of_rank for work in stages[s].passes.values())
    launches = sum(stages[s].launches for s in of_rank)
    return device.with_host(device.seconds(parts, config["dtype"]), launches)


def _costs(both: float, update: float) -> dict[str, float]:
    """Of each kind of operation, from the seconds of a forward with its backward."""
    backward = (1 - FORWARD) * both
    halves = {"I": backward / 2, "W": backward / 2}
    return {"F": FORWARD * both, "B": backward, **halves, "U": update}
