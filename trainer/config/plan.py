"""What a trial will be, known before it runs and without its data: id, length, cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

from trainer.build import build, label, locate
from trainer.combinations import check_backward
from trainer.corrections.none import NoCorrection
from trainer.errors import BadInput
from trainer.identity import trial_id
from trainer.interleave import check
from trainer.operations import Schedule
from trainer.storage import checkpoint_bytes, kept_bytes

PROVEN = 8
"""Batches of a phase that are proven to run: the later ones repeat them."""


@dataclass(frozen=True)
class Plan:
    """`tokens` and `flops` (forward and backward) are those of the whole training.

    `checkpoint_bytes` (of one checkpoint) and `kept_bytes` (of a finished trial) are estimates.
    `corrects_nothing`: it has a correction and no delay, and so the numbers of the trial without.
    """

    trial_id: str
    data_hash: str | None
    num_parameters: int
    num_updates: int
    tokens: int
    flops: float
    layers_by_stage: list[int]
    num_processes: int
    corrects_nothing: bool
    checkpoint_bytes: int
    kept_bytes: int


def plan_trial(config: Mapping[str, Any]) -> Plan:
    """The plan of a validated config; raises BadInput for a schedule or model that cannot be."""
    return Planner()(config)


class Planner:
    """`plan_trial` for many trials: what does not depend on the seed is worked out once.

    Data count as they are when the first trial on them is planned.
    """

    def __init__(self) -> None:
        self._plans: dict[str, Plan] = {}
        self._hash_of_data = cache(_hash_of_data)

    def __call__(self, config: Mapping[str, Any]) -> Plan:
        """See `plan_trial`."""
        seeds_aside = json.dumps({**config, "seed": None}, sort_keys=True)
        if seeds_aside not in self._plans:
            hash_of_data = self._hash_of_data(json.dumps(config["data"], sort_keys=True))
            self._plans[seeds_aside] = _plan(config, hash_of_data)
        plan = self._plans[seeds_aside]
        return replace(plan, trial_id=trial_id(config, plan.data_hash))


def _hash_of_data(node: str) -> str | None:
    found: str | None = build(json.loads(node)).hash
    return found


def _plan(config: Mapping[str, Any], hash_of_data: str | None) -> Plan:
    model = build(config["model"])
    tokens_per_update = config["batch_size"] * config["seq_len"]
    num_updates = config["num_updates"]
    if num_updates is None:
        tokens = config["tokens_per_parameter"] * model.num_parameters
        num_updates = max(1, round(tokens / tokens_per_update))
    schedule = build(config["pipeline"], num_updates)
    check_backward(model, schedule)
    if (problem := _problem(schedule)) is not None:
        raise BadInput("pipeline", label(config["pipeline"]), problem)
    tokens = num_updates * tokens_per_update
    return Plan(
        trial_id(config, hash_of_data),
        hash_of_data,
        model.num_parameters,
        num_updates,
        tokens,
        tokens * model.flops_per_token(config["seq_len"]),
        [len(layers) for layers in model.split(schedule.num_stages, config["seq_len"])],
        _num_processes(config, schedule),
        not schedule.is_delayed and locate(config["correction"]["_target_"]) is not NoCorrection,
        checkpoint_bytes(config, schedule, model.num_parameters),
        kept_bytes(config, num_updates, model.num_parameters),
    )


def _num_processes(config: Mapping[str, Any], schedule: Schedule) -> int:
    """One, or of a true pipeline one for each rank of each replica."""
    if config["runner"] == "emulated":
        return 1
    if schedule.num_ranks == 1 and schedule.num_stages > 1:
        allowed = "must be 2 or more with pipeline.num_chunks > 1 and runner=pipelined"
        raise BadInput("pipeline.num_stages", 1, allowed)
    replicas: int = config["num_replicas"]
    return schedule.num_ranks * replicas


@cache
def _problem(schedule: Schedule) -> str | None:
    """Why the schedule cannot run, seen in the first batches of its phases; None if it can."""
    try:
        for first, last in pairwise(schedule.phases):
            operations = schedule.operations(first, min(last, first + PROVEN))
            check(operations, schedule.lags, first)
    except ValueError as error:
        return str(error)
    return None
