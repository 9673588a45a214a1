"""Runs trials on Ray Tune, each to its end, whatever becomes of the others."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune import FailureConfig, PlacementGroupFactory, RunConfig, TuneConfig, Tuner

from pipegap.sweeps.cluster.connection import Session
from pipegap.sweeps.cluster.gang import run_gang_on_ray
from pipegap.sweeps.cluster.queue import WorkList
from pipegap.sweeps.cluster.stop_flag import stop_requested
from pipegap.sweeps.cluster.tune_hooks import (
    Bundles,
    Offers,
    StopWhenAsked,
    Untracked,
    inherited_environment,
    num_slots,
)
from pipegap.sweeps.plan.devices import bundles, require_room
from pipegap.sweeps.request.expand import Expected, Trial
from pipegap.sweeps.tracking.choice import Tracking
from pipegap.sweeps.view.display import Display
from pipegap.sweeps.view.progress import COLD, WARMING, Warm
from pipegap.sweeps.view.render import DriverConsole
from pipegap.trainer.base.errors import BadInput, LeaseLost, Stopped
from pipegap.trainer.base.status import Status
from pipegap.trainer.folder.lease import Held
from pipegap.trainer.folder.result import Row, read_result, trial_folder
from pipegap.trainer.store.bucket import StoreAway
from pipegap.trainer.store.store import RunningTrial, SweepStore
from pipegap.trainer.trial import record_failure, run_trial

REPORT_EVERY = 2.0
"""Seconds between the rows that a trial sends to the driver for its display."""
SHOWN = ("update", "tokens_per_second", "wall_seconds")

RETRIES = 2
"""How often a trial that failed or died resumes from its checkpoint before it counts as failed."""


def run_trials(
    session: Session,
    work: WorkList,
    planned: Sequence[Trial],
    expected: Expected | None = None,
) -> None:
    """Run those trials that nobody else runs; each that ends leaves a result in the store.

    Shows them among the `planned` ones; what is left is first as `expected`. Once the session is
    asked to stop, running trials save a checkpoint, from which the next call resumes. Raises
    BadInput if the cluster is too small for a trial.
    """
    view = session.title, planned, work.left, session.store, session.asked_to_stop
    with Display(*view, session.ends, DriverConsole(), expected) as display:
        _run_on_tune(session, work, display)


def _run_on_tune(session: Session, work: WorkList, display: Display) -> None:
    trials = work.left
    needed = {trial.trial_id: bundles(trial, session.gpus_per_trial) for trial in trials}
    for bundle in needed.values():
        require_room(bundle, ray.cluster_resources())
    smallest = min(
        needed.values(),
        key=lambda bundles_of_trial: sum(sum(bundle.values()) for bundle in bundles_of_trial),
    )
    stop = StopWhenAsked(session.asked_to_stop, display.running)
    shared = {"flag": stop.flag, "tracking": session.tracking, "store": session.store}
    train = tune.with_parameters(_train, **shared)
    tuner = Tuner(
        tune.with_resources(train, _resources),
        tune_config=TuneConfig(
            search_alg=Offers(
                work,
                lambda trial: _payload(trial, needed[trial.trial_id]),
                lambda: num_slots(smallest),
                session.asked_to_stop,
            ),
            num_samples=-1,
            # On a GPU the CUDA context of a trial stays with its process: a new process per trial.
            reuse_actors=all(trial.config["device"] == "cpu" for trial in trials),
            trial_name_creator=_name,
            trial_dirname_creator=_name,
        ),
        run_config=RunConfig(
            storage_path=str(session.folder / "tune"),
            verbose=0,
            callbacks=[display, Untracked()],
            stop=stop,
            failure_config=FailureConfig(max_failures=RETRIES),
        ),
    )
    with inherited_environment():
        grid = tuner.fit()
    ends = (grid[i] for i in range(len(grid)))
    died = {Path(end.path).name: end.error for end in ends if end.error}
    _record_deaths([trial for trial in trials if trial.trial_id in died], died, session.store)


def _record_deaths(
    trials: Sequence[Trial], died: Mapping[str, Exception], store: SweepStore
) -> None:
    """Record a failure for trials whose process died at every attempt before it could do so."""
    for trial in trials:
        trial_id = trial.trial_id
        with (
            suppress(OSError, BadInput, LeaseLost, StoreAway),  # the store may be what failed
            store.running(trial.config, trial_id) as running,
        ):
            if read_result(trial_folder(running.config, trial_id)) is None:
                why = f"the trial's process died: {died[trial_id]}"
                record_failure(running.config, why)


def _payload(trial: Trial, needed: Bundles) -> Row:
    """Return what Tune hands to a worker for one trial."""
    return {
        "id": trial.trial_id,
        "arm": trial.arm,
        "config": trial.config,
        "setting": trial.setting,
        "sweeps": trial.sweeps,
        "bundles": needed,
    }


def _name(trial: Any) -> str:
    """Return Tune's name of a trial: its id, so that its logs can be found."""
    return trial.config["trial"]["id"]


def _train(payload: Mapping[str, Any], flag: Any, tracking: Tracking, store: SweepStore) -> None:
    """Runs one trial in a worker, by the same function as `pipegap trial`.

    After an error Tune calls it again, in a new process, and the trial resumes. A trial that
    another driver has started meanwhile is not waited for: this one has others to run.
    """
    trial = payload["trial"]
    config = trial["config"]
    tracker = tracking.of(
        trial["id"], trial["arm"], config, setting=trial["setting"], sweeps=trial["sweeps"]
    )
    last_report, num_rows, num_evaluations, warm = time.monotonic(), 0, 0, COLD

    def send(status: Status, **row: float | str) -> None:
        tune.report({**row, "warm": warm, "status": status, "untracked": tracker.trouble})

    def report(row: Row) -> None:
        nonlocal last_report, num_rows, num_evaluations, warm
        tracker.log(row)
        num_rows += 1
        num_evaluations += "val_loss" in row
        if num_rows <= WARMING or ("val_loss" in row and num_evaluations == 1):
            warm = Warm.after(row)
        if time.monotonic() - last_report > REPORT_EVERY:
            last_report = time.monotonic()
            send(Status.RUNNING, **{key: row[key] for key in SHOWN})

    def run(running: RunningTrial) -> Row:
        def asked_to_stop() -> bool:
            return running.is_lost() or stop_requested(flag)

        try:
            with tracker:
                result = run_trial(running.config, report, asked_to_stop, run_gang_on_ray)
                tracker.outcome = result
            return result
        except Held:
            raise
        # Another attempt would raise it too: the trial has failed, and Tune does not retry it.
        except BadInput as error:
            record_failure(running.config, str(error))
            return {"status": Status.FAILED, "error": str(error)}

    num_done, wall_seconds, why = 0, 0.0, ""
    try:
        with store.running(config, trial["id"]) as running:
            result = run(running)
        status = Status(result["status"])
        num_done, wall_seconds = result.get("num_updates", 0), result.get("wall_seconds", 0.0)
        why = result.get("error") or ""
    except Stopped as stopped:
        num_done, status = stopped.num_updates, Status.STOPPED
    except (Held, LeaseLost, StoreAway):
        status = Status.ELSEWHERE
    except BadInput as error:  # what the store has of it is damaged: nothing can be recorded
        status, why = Status.FAILED, str(error)
    send(status, num_done=num_done, wall_seconds=wall_seconds, error=why)


def _resources(payload: Mapping[str, Any]) -> PlacementGroupFactory:
    return PlacementGroupFactory(payload["trial"]["bundles"])
