"""Runs trials on Ray Tune, each to its end, whatever becomes of the others."""

from __future__ import annotations

import logging
import os
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune import (
    Callback,
    FailureConfig,
    PlacementGroupFactory,
    Result,
    ResultGrid,
    RunConfig,
    TuneConfig,
    Tuner,
)

from sweeps.expand import Trial
from trainer.errors import BadInput
from trainer.record import Row
from trainer.trial import record_failure, run_trial

REPORT_EVERY = 2.0
"""Seconds between the rows that a trial sends to the driver for its display."""

DEATHS_ALLOWED = 2
"""How often a trial whose process died goes on from its checkpoint before it counts as failed."""


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


def run(trials: Sequence[Trial], display: Callback) -> None:
    """Runs `trials`; each that ends leaves a result in the store.

    Needs a `cluster`. A process runs trials one after the other, except on GPUs, where its CUDA
    context would stay. Ctrl-C stops them; the next call goes on from their checkpoints. Raises
    BadInput if the cluster can never hold one.
    """
    with tempfile.TemporaryDirectory(prefix="pipegap-tune-") as scratch:
        for trial in trials:
            _require(_bundle(trial.config, trial.plan.num_processes))
        grid = Tuner(
            tune.with_resources(_train, _resources),
            param_space={"trial": tune.grid_search([_payload(trial) for trial in trials])},
            tune_config=TuneConfig(
                reuse_actors=all(trial.config["device"] == "cpu" for trial in trials),
                trial_name_creator=_name,
                trial_dirname_creator=_name,
            ),
            run_config=RunConfig(
                storage_path=scratch,
                verbose=0,
                callbacks=[display],
                failure_config=FailureConfig(max_failures=DEATHS_ALLOWED),
            ),
        ).fit()
    _record_deaths(trials, {Path(end.path).name for end in _each(grid) if end.error is not None})


def _each(grid: ResultGrid) -> Iterator[Result]:
    return (grid[i] for i in range(len(grid)))


def _record_deaths(trials: Sequence[Trial], died: set[str]) -> None:
    """A trial whose process died again and again could not record that itself."""
    for trial in trials:
        if trial.plan.trial_id in died and not (trial.folder / "result.json").exists():
            record_failure(trial.config, "the trial's process died")


def _payload(trial: Trial) -> Row:
    return {
        "id": trial.plan.trial_id,
        "arm": trial.arm,
        "config": trial.config,
        "bundle": _bundle(trial.config, trial.plan.num_processes),
    }


def _name(trial: Any) -> str:
    """Tune's name of a trial is ours, so that its logs can be found."""
    name: str = trial.config["trial"]["id"]
    return name


def _train(point: Mapping[str, Any]) -> None:
    """What a worker runs: the same function as `python -m trainer`."""
    last_report = time.monotonic()

    def report(row: Row) -> None:
        nonlocal last_report
        if time.monotonic() - last_report > REPORT_EVERY:
            last_report = time.monotonic()
            tune.report({"num_done": row["update"] + 1, "status": "running"})

    try:
        result = run_trial(point["trial"]["config"], report)
    except Exception:
        record_failure(point["trial"]["config"], traceback.format_exc())
        result = {"num_updates": 0, "status": "failed"}
    tune.report({"num_done": result["num_updates"], "status": result["status"]})


def _resources(point: Mapping[str, Any]) -> PlacementGroupFactory:
    return PlacementGroupFactory([point["trial"]["bundle"]])


def _bundle(config: Mapping[str, Any], num_processes: int) -> dict[str, float]:
    """What a trial occupies on one node: CPU threads, and a GPU a process if it trains on them."""
    cpus = {"CPU": float(config["num_threads"] * num_processes)}
    return cpus if config["device"] == "cpu" else {**cpus, "GPU": float(num_processes)}


def _require(bundle: Mapping[str, float]) -> None:
    there = ray.cluster_resources()
    for resource, needed in bundle.items():
        if there.get(resource, 0) < needed:
            raise BadInput(
                "device" if resource == "GPU" else "num_threads",
                needed,
                f"a trial needs {needed:g} {resource}, Ray has {there.get(resource, 0):g}",
            )
