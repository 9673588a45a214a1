"""Runs trials on Ray Tune, each to its end, whatever becomes of the others."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune import (
    FailureConfig,
    PlacementGroupFactory,
    Result,
    ResultGrid,
    RunConfig,
    TuneConfig,
    Tuner,
)

from sweeps.bundles import bundles
from sweeps.display import Display
from sweeps.expand import Trial
from sweeps.gang import run_gang_on_ray
from sweeps.stop import StopWhenAsked
from sweeps.stop_sign import asks
from sweeps.tracking.choice import Tracking
from sweeps.tracking.untracked import Untracked
from trainer.errors import BadInput, Stopped
from trainer.lease import Held, LeaseLost
from trainer.record import Row
from trainer.trial import record_failure, run_trial
from trainer.watch import AskedToStop

REPORT_EVERY = 2.0
"""Seconds between the rows that a trial sends to the driver for its display."""
SHOWN = ("update", "tokens_per_second", "wall_seconds")

RETRIES = 2
"""How often a trial that failed or died goes on from its checkpoint before it counts as failed."""


@contextmanager
def cluster() -> Iterator[None]:
    """The cluster of RAY_ADDRESS, or one on this machine that listens on loopback only.

    A worker runs each of its trials in a new thread, for which glibc would open a new arena, and so
    keep the memory of the trials before.
    """
    environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    ray.init(
        include_dashboard=None if "RAY_ADDRESS" in os.environ else False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": environment},
    )
    try:
        yield
    finally:
        ray.shutdown()


def run(
    trials: Sequence[Trial],
    gpus_per_trial: float,
    display: Display,
    asked_to_stop: AskedToStop,
    tracking: Tracking,
) -> None:
    """Runs `trials`; each that ends leaves a result in the store.

    Needs a `cluster`. A process runs trials one after the other, except on GPUs, where its CUDA
    context would stay. If `asked_to_stop`, they save a checkpoint first, from which the next call
    goes on. Raises BadInput if the cluster can never hold one.
    """
    needed = {trial.plan.trial_id: bundles(trial, gpus_per_trial) for trial in trials}
    for bundle in needed.values():
        _require(bundle)
    stop = StopWhenAsked(asked_to_stop, display)
    train = tune.with_parameters(_train, sign=stop.sign, tracking=tracking)
    with tempfile.TemporaryDirectory(prefix="pipegap-tune-") as scratch:
        grid = Tuner(
            tune.with_resources(train, _resources),
            param_space={
                "trial": tune.grid_search(
                    [_payload(trial, needed[trial.plan.trial_id]) for trial in trials]
                )
            },
            tune_config=TuneConfig(
                reuse_actors=all(trial.config["device"] == "cpu" for trial in trials),
                trial_name_creator=_name,
                trial_dirname_creator=_name,
            ),
            run_config=RunConfig(
                storage_path=scratch,
                verbose=0,
                callbacks=[display, Untracked()],
                stop=stop,
                failure_config=FailureConfig(max_failures=RETRIES),
            ),
        ).fit()
    _record_deaths(trials, {Path(end.path).name: end.error for end in _each(grid) if end.error})


def _each(grid: ResultGrid) -> Iterator[Result]:
    return (grid[i] for i in range(len(grid)))


def _record_deaths(trials: Sequence[Trial], died: Mapping[str, Exception]) -> None:
    """A trial whose process died again and again could not record that itself."""
    for trial in trials:
        error = died.get(trial.plan.trial_id)
        if error is not None and not (trial.folder / "result.json").exists():
            with suppress(OSError, BadInput):  # the store may be what failed
                record_failure(trial.config, f"the trial's process died: {error}")


def _payload(trial: Trial, needed: list[dict[str, float]]) -> Row:
    return {
        "id": trial.plan.trial_id,
        "arm": trial.arm,
        "config": trial.config,
        "bundles": needed,
    }


def _name(trial: Any) -> str:
    """Tune's name of a trial is ours, so that its logs can be found."""
    name: str = trial.config["trial"]["id"]
    return name


def _train(point: Mapping[str, Any], sign: Any, tracking: Tracking) -> None:
    """What a worker runs: the same function as `python -m trainer`.

    What it raises makes Tune start it again, in a new process, to go on from its checkpoint.
    """
    trial = point["trial"]
    config = trial["config"]
    tracker = tracking.of(trial["id"], trial["arm"], config)
    last_report = time.monotonic()

    def tell(status: str, **row: float) -> None:
        tune.report({**row, "status": status, "untracked": tracker.trouble})

    def report(row: Row) -> None:
        nonlocal last_report
        tracker.log(row)
        if time.monotonic() - last_report > REPORT_EVERY:
            last_report = time.monotonic()
            tell("running", **{key: row[key] for key in SHOWN})

    num_done = 0
    try:
        with tracker:
            result = run_trial(config, report, lambda: asks(sign), run_gang_on_ray)
            tracker.outcome = result
        num_done, status = result["num_updates"], result["status"]
    except Stopped as stopped:
        num_done, status = stopped.num_updates, "stopped"
    except (Held, LeaseLost):
        status = "elsewhere"
    except BadInput as error:  # another attempt would find the same
        record_failure(config, str(error))
        status = "failed"
    tell(status, num_done=num_done)


def _resources(point: Mapping[str, Any]) -> PlacementGroupFactory:
    return PlacementGroupFactory(point["trial"]["bundles"])


def _require(needed: Sequence[Mapping[str, float]]) -> None:
    there = ray.cluster_resources()
    for key, resource in (("device", "GPU"), ("num_threads", "CPU")):
        amount = sum(bundle.get(resource, 0.0) for bundle in needed)
        if there.get(resource, 0) < amount:
            of_gang = f" for its {len(needed) - 1} ranks" if len(needed) > 1 else ""
            allowed = f"a trial needs {amount:g} {resource}{of_gang}, "
            raise BadInput(key, amount, f"{allowed}Ray has {there.get(resource, 0):g}")
