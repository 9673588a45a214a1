"""Trials that are tracked, and what they wrote."""

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipegap.sweeps.tracking import choice
from pipegap.sweeps.tracking.choice import Background, Tracking
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.folder.result import Row
from pipegap.trainer.trial import run_trial
from tests.support import small, trials

PATIENT = 120.0


def chosen(*words: str) -> Tracking:
    """The tracker of these words of a command line, given time enough on a busy machine."""
    given = {"tracking.wait": str(PATIENT), **dict(word.split("=", 1) for word in words)}
    found = choice.take(given)
    assert not given
    return found


def tracked(
    config: dict[str, Any],
    tracking: Tracking,
    stop_after: float = math.inf,
    sweeps: Sequence[str] = ("main-micro",),
    arm: str = "sync",
    setting: str = "clip_norm=1",
) -> Background:
    """Runs a trial of `sweeps` as a worker does, or up to an update."""
    trial_id = plan_trial(config).trial_id
    tracker = tracking.of(trial_id, arm, config, setting=setting, sweeps=sweeps)
    num_rows = 0

    def report(row: Row) -> None:
        nonlocal num_rows
        num_rows += 1
        tracker.log(row)

    with tracker:
        tracker.outcome = run_trial(config, report, lambda: num_rows >= stop_after)
    return tracker


def folder(config: dict[str, Any]) -> Path:
    return Path(config["results"]) / "trials" / plan_trial(config).trial_id


def rows(config: dict[str, Any]) -> list[Row]:
    return [
        json.loads(line) for line in (folder(config) / "metrics.jsonl").read_text().splitlines()
    ]


def untimed(config: dict[str, Any]) -> list[Row]:
    return trials.rows(folder(config))


def runs(config: dict[str, Any]) -> list[Path]:
    return sorted(Path(config["results"]).glob("tracking/wandb/*run-*"))


@cache
def plain() -> list[Row]:
    """Rows of the trial without a tracker, times aside."""
    with TemporaryDirectory() as scratch:
        config = small.config(Path(scratch))
        run_trial(config)
        return untimed(config)
