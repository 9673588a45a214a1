"""Runs one trial, in this process or as a gang of processes."""

import os
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from trainer.base.errors import BadInput, LeaseLost, Stopped
from trainer.base.randomness import stream_seed
from trainer.base.resources import (
    device_name,
    rank_device,
    reproducible,
    require_device,
    reset_peak_memory,
)
from trainer.base.status import Status
from trainer.config.identity import made_by
from trainer.config.plan import Plan, plan_trial
from trainer.executors.executor import Executor
from trainer.folder import checkpoint
from trainer.folder.record import ReadOnlyFolder, Row, TrialFolder, tidy, trial_folder
from trainer.parts import build_emulated, build_parts, build_pipelined, open_data
from trainer.progress import outcome
from trainer.ranks.groups import Gang, Heartbeat, joined
from trainer.ranks.spawn import run_gang
from trainer.ranks.supervisor import AskedToStop, Launch, Parent
from trainer.training import Report, Training, never, nothing, nowhere, restored_other

Config = Mapping[str, Any]
Runner = Callable[[Config, Plan, TrialFolder, Report, AskedToStop], Row]


def run_trial(
    config: Config,
    report: Report = nowhere,
    asked_to_stop: AskedToStop = never,
    launch: Launch = run_gang,
) -> Row:
    """Runs or resumes the trial of a resolved config; returns its result.

    The callback `report` gets every row of metrics.jsonl; `launch` starts the ranks of a gang. A
    finished trial does not run again. A divergence is a result. Raises Stopped, after a checkpoint,
    once `asked_to_stop` is true, and BadInput for a config that cannot run. Any other error is
    recorded and raised.
    """
    runners: Mapping[str, Runner] = {
        "emulated": _train_alone,
        "pipelined": partial(_train_in_gang, launch),
    }
    plan = plan_trial(config)
    folder = TrialFolder(trial_folder(config, plan.trial_id), plan.trial_id)
    if (done := folder.result()) is not None:
        tidy(folder.path)
        return done
    folder.require_sound(config)
    try:
        return runners[config["runner"]](config, plan, folder, report, asked_to_stop)
    # None of these is a failure, and after a lost lease the folder belongs to another process.
    except (BadInput, Stopped, LeaseLost):
        raise
    except Exception:
        with suppress(OSError, BadInput):  # a full disk may be the error that is to be recorded
            record_failure(config, traceback.format_exc())
        raise


def finished_result(config: Config) -> Row | None:
    """Return the result in the trial's folder; None if the trial has to run.

    Raises BadInput if the folder is another trial's.
    """
    plan = plan_trial(config)
    return TrialFolder(trial_folder(config, plan.trial_id), plan.trial_id).result()


def record_failure(config: Config, error: str) -> None:
    """Records the `error` of a trial whose process could not; keeps a finished result."""
    plan = plan_trial(config)
    folder = TrialFolder(trial_folder(config, plan.trial_id), plan.trial_id)
    with folder.claimed(config, made_by(config["device"])):
        if folder.result() is None:
            of_plan = config["device"], Status.FAILED, plan.num_updates
            folder.fail(outcome(config, plan, *of_plan, error=error))


def _train_alone(
    config: Config,
    plan: Plan,
    folder: TrialFolder,
    report: Report,
    asked_to_stop: AskedToStop,
) -> Row:
    """Runs all stages in this process; returns the result."""
    device = require_device(config["device"])
    reset_peak_memory(device)
    with _reproducible(config):
        # Built before the claim: a trial that cannot run leaves no trace in the folder.
        parts = build_parts(config, plan.num_updates)
        executor = build_emulated(config, parts, device)
        _require_start(config, folder, executor)
        with folder.claimed(config, made_by(device_name(device))):
            if (done := folder.result()) is not None:  # another process ran it until now
                return done
            training = Training(
                config, plan, device, parts, executor, folder, report, asked_to_stop
            )
            return training.run()


def _reproducible(config: Config) -> AbstractContextManager[None]:
    seed = stream_seed(config["seed"], "optimizer")
    return reproducible(seed, config["num_threads"], config["deterministic"])


def _require_start(config: Config, folder: TrialFolder, executor: Executor) -> None:
    """Raises BadInput, before the folder is claimed, for a `resume_from` that cannot be used.

    A trial with a checkpoint of its own no longer needs `resume_from`.
    """
    if not checkpoint.newest_first(folder.path):
        restored_other(config, executor)


def _train_in_gang(
    launch: Launch,
    config: Config,
    plan: Plan,
    folder: TrialFolder,
    report: Report,
    asked_to_stop: AskedToStop,
) -> Row:
    """Starts the ranks and waits for them; under torchrun this process is a rank itself."""
    if dist.is_torchelastic_launched():
        return _as_elastic_rank(config, plan, report, asked_to_stop)
    open_data(config)  # raises BadInput once, here, and not in every rank
    parent = Parent(report, config["timeout"], asked_to_stop)
    launch(_as_rank, (config, plan), plan.num_processes, parent)
    result = folder.result()
    assert result is not None
    return result


def _as_rank(
    store: dist.Store, heartbeat: Heartbeat, send: Callable[[Row], None], config: Config, plan: Plan
) -> None:
    """Runs one rank, wherever `launch` started it."""
    # The supervisor finds the rank that hangs: torch's own limit must not come first.
    timeout = 2 * config["timeout"]
    _train_rank(config, plan, heartbeat, send, heartbeat.asked_to_stop, store, timeout)


def _as_elastic_rank(config: Config, plan: Plan, report: Report, asked_to_stop: AskedToStop) -> Row:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world != plan.num_processes:
        raise BadInput(
            "pipeline.num_stages",
            config["pipeline"]["num_stages"],
            f"times num_replicas={config['num_replicas']} must be torchrun's {world} processes",
        )
    heartbeat = Heartbeat([0.0] * world, rank, [0])
    return _train_rank(config, plan, heartbeat, report, asked_to_stop, None, config["timeout"])


def _train_rank(
    config: Config,
    plan: Plan,
    heartbeat: Heartbeat,
    report: Report,
    asked_to_stop: AskedToStop,
    store: dist.Store | None,
    timeout: float,
) -> Row:
    rank = heartbeat.rank
    device = rank_device(config["device"], int(os.environ.get("LOCAL_RANK", rank)))
    if device.type == "cuda":
        torch.cuda.set_device(device)  # NCCL and new streams use the current device
    reset_peak_memory(device)
    num_ranks = config["pipeline"]["num_stages"]
    with (
        _reproducible(config),
        joined(store, rank, num_ranks, config["num_replicas"], device, heartbeat, timeout) as gang,
    ):
        return _train_in(gang, config, plan, report, asked_to_stop)


def _train_in(
    gang: Gang, config: Config, plan: Plan, report: Report, asked_to_stop: AskedToStop
) -> Row:
    parts = build_parts(config, plan.num_updates)
    executor = build_pipelined(config, parts, gang)
    kind = TrialFolder if gang.records else ReadOnlyFolder
    folder = kind(trial_folder(config, plan.trial_id), plan.trial_id)
    _require_start(config, folder, executor)
    with folder.claimed(config, made_by(device_name(gang.device))):
        gang.barrier()  # nobody reads the folder before it is claimed
        if (done := folder.result()) is not None:  # another process ran it until now
            return done
        report = report if gang.records else nowhere
        on_finish = executor.write_trace if config["trace"] else nothing
        training = Training(
            config, plan, gang.device, parts, executor, folder, report, asked_to_stop, on_finish
        )
        return training.run()
