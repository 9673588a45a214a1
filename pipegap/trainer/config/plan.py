"""What a trial will be, known before it runs and without its data: id, length, cost."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import ceil
from typing import Any, Protocol

from pipegap.trainer.base.build import label, locate, made, use_code
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.ranges import MAX_COUNT
from pipegap.trainer.config import schema, work
from pipegap.trainer.config.identity import trial_id
from pipegap.trainer.config.work import FP32
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.data.shards import Source
from pipegap.trainer.models.decoder import Recipe
from pipegap.trainer.models.export import check_start
from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.schedules.proof import check

Config = Mapping[str, Any]

PROVEN = 8
"""How many batches at the start of each phase are proven to run; later ones repeat them."""
FORWARD = 1 / 3
"""The share of the forward in the work of forward and backward."""
ROW, RECORD = 190, 4_000
"""Bytes of one row of metrics.jsonl without diagnostics; of the files of any trial's record."""


class LrFactor(Protocol):
    """A schedule of the learning rate."""

    def __call__(self, update: int) -> float:
        """The factor on the peak rate at an update."""


@dataclass(frozen=True)
class Plan:
    """What a trial will be.

    `tokens` and `flops` (forward and backward) are those of the whole training.
    `evaluation_flops` are those of all `num_evaluations`, 0 where the data is not prepared.
    `checkpoint_bytes` (of one checkpoint) and `kept_bytes` (of a finished trial) are estimates.
    `memory_bytes` is `largest_rank`, beside which the loss of a microbatch takes `loss_bytes`.
    `work_by_rank` is the work of a forward on each rank, true or emulated, of which only the ratios
    count. If `is_delayed`, some gradient is late. If it `looks_ahead`, its correction acts without
    a delay too. If it `corrects_nothing`, its correction acts on late gradients alone and there are
    none, so its numbers are those of a trial without the correction.
    """

    trial_id: str
    data_hash: str | None
    num_parameters: int
    num_active_parameters: int
    num_updates: int
    tokens: int
    flops: float
    layers_by_stage: list[int]
    work_by_rank: list[float]
    num_processes: int
    is_delayed: bool
    looks_ahead: bool
    corrects_nothing: bool
    checkpoint_bytes: int
    kept_bytes: int
    memory_bytes: int
    loss_bytes: int
    num_evaluations: int
    evaluation_flops: float


def plan_trial(config: Config) -> Plan:
    """The plan of a validated config; raises BadInput for a schedule or model that cannot run."""
    return Planner()(config)


class Planner:
    """`plan_trial` for many trials, which share what depends on neither seed nor optimizer's keys.

    The data are hashed once, when the first trial on them is planned.
    """

    def __init__(self) -> None:
        self._plans: dict[str, Plan] = {}
        self._facts = cache(_facts)

    def __call__(self, config: Config) -> Plan:
        """See `plan_trial`."""
        use_code(config.get("code"))
        # All but the id is equal for trials that differ in the seed or in the optimizer's keys.
        key = json.dumps({**config, "seed": None, **which_optimizer(config)}, sort_keys=True)
        if key not in self._plans:
            facts = self._facts(json.dumps(config["data"], sort_keys=True))
            self._plans[key] = _plan(config, *facts)
        plan = self._plans[key]
        return replace(plan, trial_id=trial_id(config, plan.data_hash))


def which_optimizer(config: Config) -> dict[str, Any]:
    """Returns the optimizer's part of a config that sizes and work depend on: its address."""
    return {"optimizer": {"_target_": config["optimizer"]["_target_"]}}


def _facts(node: str) -> tuple[str | None, int]:
    """The data's hash and number of validation tokens; None and 0 where it is not prepared."""
    source: Source = made("data", json.loads(node), Source)
    digest = source.hash
    return digest, 0 if digest is None else source.num_validation_tokens


def _plan(config: Config, hash_of_data: str | None, num_validation: int) -> Plan:
    model: Recipe = made("model", config["model"], Recipe)
    tokens_per_update = config["batch_size"] * config["seq_len"]
    num_updates = config["num_updates"]
    if num_updates is None:
        num_updates = _num_updates(config, model.num_parameters)
    schedule: Schedule = made("pipeline", config["pipeline"], Schedule, num_updates)
    made("lr_schedule", config["lr_schedule"], LrFactor, num_updates)
    split = model.split(schedule.num_stages, config["seq_len"])
    parts = num_updates, schedule.lags
    correction: NoCorrection = made("correction", config["correction"], NoCorrection, *parts)
    schema.check_averaging(config, correction)
    schema.check_backward(config, model, schedule)
    schema.check_in_place(config, schedule, correction)
    schema.check_graphs(config, model, correction)
    check_start(model, config.get("from_pretrained"))
    if (problem := _problem(schedule)) is not None:
        raise BadInput("pipeline", label(config["pipeline"]), problem)
    tokens = num_updates * tokens_per_update
    flops_per_token = model.flops_per_token(config["seq_len"])
    acts = schedule.is_delayed or correction.looks_ahead
    stages = work.weights_of(config["model"], schedule.num_stages, config["seq_len"])
    states = work.states_of(locate(config["optimizer"]["_target_"]), stages)
    num_kept = config["save_final"] + config["save_last"]  # sets of weights
    num_evaluations = ceil(num_updates / config["eval_every"])
    # The last evaluation reads all validation tokens, the others at most eval_tokens.
    num_evaluated = num_validation + (num_evaluations - 1) * min(
        num_validation, config["eval_tokens"] or num_validation
    )
    return Plan(
        trial_id(config, hash_of_data),
        hash_of_data,
        model.num_parameters,
        model.num_active_parameters,
        num_updates,
        tokens,
        tokens * flops_per_token,
        [len(layers) for layers in split],
        work.by_rank(schedule, model.work(split, config["seq_len"])),
        _num_processes(config, schedule),
        schedule.is_delayed,
        correction.looks_ahead,
        not acts and type(correction) is not NoCorrection,  # corrects_nothing
        _checkpoint_bytes(config, schedule, correction),
        RECORD + ROW * num_updates + num_kept * FP32 * model.num_parameters,
        work.largest_rank(config, schedule, correction, stages, states),
        work.loss_bytes(config, model),
        num_evaluations,
        num_evaluated * flops_per_token * FORWARD,
    )


def _num_updates(config: Config, num_parameters: int) -> int:
    """Returns the updates that make `tokens_per_parameter`; raises BadInput for too many."""
    share: float = config["tokens_per_parameter"]
    num_updates = max(1, round(share * num_parameters / (config["batch_size"] * config["seq_len"])))
    if num_updates > MAX_COUNT:
        allowed = f"must make at most {MAX_COUNT} updates, not {num_updates}"
        raise BadInput("tokens_per_parameter", share, allowed)
    return num_updates


def _num_processes(config: Config, schedule: Schedule) -> int:
    """1 for an emulated trial; for a true pipeline, ranks times replicas."""
    if config["runner"] == "emulated":
        return 1
    if schedule.num_ranks == 1 and schedule.num_stages > 1:
        allowed = "must be 2 or more with pipeline.num_chunks > 1 and runner=pipelined"
        raise BadInput("pipeline.num_stages", 1, allowed)
    replicas: int = config["num_replicas"]
    return schedule.num_ranks * replicas


def _checkpoint_bytes(config: Config, schedule: Schedule, correction: NoCorrection) -> int:
    """Bytes of one checkpoint: fp32 master, living versions, states of optimizer and correction.

    In fp32 the newest version is the master itself. The estimate takes all stages as equally large.
    """
    itemsize = work.itemsize_of(config)
    whole = work.weights_of(config["model"], 1, config["seq_len"])
    [weights], [states] = whole, work.states_of(locate(config["optimizer"]["_target_"]), whole)
    lags = schedule.lags
    # Means over stages: 1 newest version and `lag` older ones, each a set of leaves.
    leaves = 1 + sum(lag + correction.num_leaves_ahead(lag) for lag in lags) / len(lags)
    buffers = sum(map(correction.num_buffers, lags)) / len(lags)
    master = 0 if itemsize == FP32 else FP32
    of_weights = work.num_entries(weights) * (master + leaves * itemsize + buffers * FP32)
    return round(of_weights + FP32 * states)


@cache
def _problem(schedule: Schedule) -> str | None:
    """Why the schedule cannot run; None if the first batches of each of its phases can."""
    try:
        for first, last in pairwise(schedule.phases):
            operations = schedule.operations(first, min(last, first + PROVEN))
            check(operations, schedule.lags, first)
    except ValueError as error:
        return str(error)
    return None
