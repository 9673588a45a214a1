"""Trains one trial as a gang: a process a stage and replica, started here or by torchrun."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from trainer.errors import BadInput
from trainer.gang import Gang, Pulse, joined
from trainer.parts import build_parts, build_pipelined, open_data
from trainer.plan import Plan
from trainer.randomness import stream_seed
from trainer.record import Onlooker, Row, TrialFolder, trial_folder
from trainer.resources import rank_device, reproducible, reset_peak_memory
from trainer.training import Report, Training, nothing, nowhere
from trainer.watch import AskedToStop, Launch

Config = Mapping[str, Any]


def train_in_gang(
    launch: Launch,
    config: Config,
    plan: Plan,
    folder: TrialFolder,
    report: Report,
    asked_to_stop: AskedToStop,
) -> Row:
    """Starts the ranks and waits for them; under torchrun, this process is one of them."""
    if dist.is_torchelastic_launched():
        return _as_elastic_rank(config, plan, report, asked_to_stop)
    open_data(config)  # says what is wrong with it before p processes do
    timeout = config["timeout"]
    launch(as_rank, (config, plan), plan.num_processes, report, timeout, asked_to_stop)
    result = folder.result()
    assert result is not None
    return result


def as_rank(
    store: dist.Store, pulse: Pulse, tell: Callable[[Row], None], config: Config, plan: Plan
) -> None:
    """What a rank runs, wherever it was started."""
    # The parent watches for what hangs: torch's own limit must not come first.
    patience = 2 * config["timeout"]
    _train(config, plan, pulse, tell, pulse.asked_to_stop, store, patience)


def _as_elastic_rank(config: Config, plan: Plan, report: Report, asked_to_stop: AskedToStop) -> Row:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world != plan.num_processes:
        raise BadInput(
            "pipeline.num_stages",
            config["pipeline"]["num_stages"],
            f"times num_replicas={config['num_replicas']} must be torchrun's {world} processes",
        )
    pulse = Pulse([0.0] * world, rank, [0])
    return _train(config, plan, pulse, report, asked_to_stop, None, config["timeout"])


def _train(
    config: Config,
    plan: Plan,
    pulse: Pulse,
    report: Report,
    asked_to_stop: AskedToStop,
    store: dist.Store | None,
    patience: float,
) -> Row:
    rank = pulse.rank
    device = rank_device(config["device"], int(os.environ.get("LOCAL_RANK", rank)))
    if device.type == "cuda":
        torch.cuda.set_device(device)  # what NCCL and new streams go by
    reset_peak_memory(device)
    num_ranks = config["pipeline"]["num_stages"]
    seed = stream_seed(config["seed"], "optimizer")
    with (
        reproducible(seed, config["num_threads"]),
        joined(store, rank, num_ranks, config["num_replicas"], device, pulse, patience) as gang,
    ):
        return _train_as(gang, config, plan, report, asked_to_stop)


def _train_as(
    gang: Gang, config: Config, plan: Plan, report: Report, asked_to_stop: AskedToStop
) -> Row:
    parts = build_parts(config, plan.num_updates)
    executor = build_pipelined(config, parts, gang)
    place = TrialFolder if gang.records else Onlooker
    folder = place(trial_folder(config, plan.trial_id), plan.trial_id)
    with folder.claimed(config):
        gang.share(None)  # nobody reads the folder before it is claimed
        if (done := folder.result()) is not None:  # another process was at it until now
            return done
        told = report if gang.records else nowhere
        leave = executor.write_trace if config["trace"] else nothing
        training = Training(
            config, plan, gang.device, parts, executor, folder, told, asked_to_stop, leave
        )
        return training.run()
