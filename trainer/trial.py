"""Runs one trial, in this process or as a gang of them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from trainer.errors import BadInput, Stopped
from trainer.identity import provenance
from trainer.lease import LeaseLost
from trainer.parts import build_emulated, build_parts
from trainer.plan import Plan, plan_trial
from trainer.randomness import stream_seed
from trainer.ranks import train_in_gang
from trainer.record import Row, TrialFolder, trial_folder
from trainer.resources import reproducible, require_device, reset_peak_memory
from trainer.spawn import run_gang
from trainer.training import Report, Training, never, nowhere
from trainer.watch import AskedToStop, Launch

Config = Mapping[str, Any]
Runner = Callable[[Config, Plan, TrialFolder, Report, AskedToStop], Row]


def run_trial(
    config: Config,
    report: Report = nowhere,
    asked_to_stop: AskedToStop = never,
    launch: Launch = run_gang,
) -> Row:
    """Runs, or goes on with, the trial of a resolved config; returns its result.

    `report` is handed every row of metrics.jsonl; `launch` starts the ranks of a gang. A finished
    trial is not run again; a divergence is a result. Raises Stopped, after a checkpoint, if
    `asked_to_stop`; BadInput for what cannot run; any other error is recorded, then raised.
    """
    runners: Mapping[str, Runner] = {
        "emulated": _train_alone,
        "pipelined": partial(train_in_gang, launch),
    }
    plan = plan_trial(config)
    folder = TrialFolder(trial_folder(config, plan.trial_id), plan.trial_id)
    if (done := folder.result()) is not None:
        return done
    try:
        return runners[config["runner"]](config, plan, folder, report, asked_to_stop)
    except (BadInput, Stopped, LeaseLost):
        raise
    except Exception:
        with suppress(OSError, BadInput):  # the disk may be full, which may be the very failure
            record_failure(config, traceback.format_exc())
        raise


def record_failure(config: Config, error: str) -> None:
    """Records a trial that could not say itself why it failed; never over a finished one."""
    plan = plan_trial(config)
    with TrialFolder(trial_folder(config, plan.trial_id), plan.trial_id).claimed(config) as folder:
        if folder.result() is None:
            folder.finish(_failure(config, plan, error))


def _train_alone(
    config: Config,
    plan: Plan,
    folder: TrialFolder,
    report: Report,
    asked_to_stop: AskedToStop,
) -> Row:
    """All stages in this process."""
    device = require_device(config["device"])
    reset_peak_memory(device)
    with reproducible(stream_seed(config["seed"], "optimizer"), config["num_threads"]):
        parts = build_parts(config, plan.num_updates)
        executor = build_emulated(config, parts, device)
        with folder.claimed(config):
            if (done := folder.result()) is not None:  # another process was at it until now
                return done
            training = Training(
                config, plan, device, parts, executor, folder, report, asked_to_stop
            )
            return training.run()


def _failure(config: Config, plan: Plan, error: str) -> Row:
    return {
        **provenance(plan.trial_id, plan.data_hash, config["device"]),
        "status": "failed",
        "final_val_loss": None,
        "diverged_at": None,
        "seed": config["seed"],
        "num_updates": plan.num_updates,
        "num_parameters": plan.num_parameters,
        "error": error,
    }
