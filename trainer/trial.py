"""Runs one trial, in this process or as a gang of them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

from trainer.errors import BadInput
from trainer.identity import provenance
from trainer.parts import build_emulated, build_parts
from trainer.plan import Plan, plan_trial
from trainer.randomness import stream_seed
from trainer.ranks import train_in_gang
from trainer.record import Row, TrialFolder, trial_folder
from trainer.resources import reproducible, require_device, reset_peak_memory
from trainer.training import Report, Training, nowhere

Config = Mapping[str, Any]
Runner = Callable[[Config, Plan, TrialFolder, Report], Row]


def run_trial(config: Config, report: Report = nowhere) -> Row:
    """Runs, or goes on with, the trial of a resolved config; returns its result.

    `report` is handed every row of metrics.jsonl. A finished trial is not run again; a divergence
    is a result. Raises BadInput for what cannot run; any other error is recorded, then raised.
    """
    plan = plan_trial(config)
    folder = TrialFolder(trial_folder(config, plan.trial_id), plan.trial_id)
    if (done := folder.result()) is not None:
        return done
    try:
        return RUNNERS[config["runner"]](config, plan, folder, report)
    except BadInput:
        raise
    except Exception:
        record_failure(config, traceback.format_exc())
        raise


def record_failure(config: Config, error: str) -> None:
    """Records a trial that could not say itself why it failed; never over a finished one."""
    plan = plan_trial(config)
    with TrialFolder(trial_folder(config, plan.trial_id), plan.trial_id).claimed(config) as folder:
        if folder.result() is None:
            folder.finish(_failure(config, plan, error))


def _train_alone(config: Config, plan: Plan, folder: TrialFolder, report: Report) -> Row:
    """All stages in this process."""
    device = require_device(config["device"])
    reset_peak_memory(device)
    with reproducible(stream_seed(config["seed"], "optimizer"), config["num_threads"]):
        parts = build_parts(config, plan.num_updates)
        executor = build_emulated(config, parts, device)
        with folder.claimed(config):
            if (done := folder.result()) is not None:  # another process was at it until now
                return done
            return Training(config, plan, device, parts, executor, folder, report).run()


RUNNERS: Mapping[str, Runner] = {"emulated": _train_alone, "pipelined": train_in_gang}


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
