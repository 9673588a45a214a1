"""Runs trials on Ray Tune, each to its end, whatever becomes of the others."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.execution import class_cache
from ray.tune.search import Searcher

from pipegap.sweeps.cluster.connection import Session
from pipegap.sweeps.cluster.gang import run_gang_on_ray
from pipegap.sweeps.cluster.queue import WorkList
from pipegap.sweeps.cluster.stop_flag import StopFlag, stop_requested
from pipegap.sweeps.plan.devices import bundles, require_room
from pipegap.sweeps.request.expand import Expected, Trial
from pipegap.sweeps.tracking.tracker import Tracking
from pipegap.sweeps.view.display import Display
from pipegap.sweeps.view.progress import COLD, WARMING, Warm
from pipegap.sweeps.view.render import DriverConsole
from pipegap.trainer.base.cli import say
from pipegap.trainer.base.errors import BadInput, LeaseLost, Status, Stopped
from pipegap.trainer.folder.lease import Held
from pipegap.trainer.folder.wellformed import Row, read_result, trial_folder
from pipegap.trainer.ranks.spawn import AskedToStop
from pipegap.trainer.store.bucket import StoreAway
from pipegap.trainer.store.store import RunningTrial, SweepStore
from pipegap.trainer.training import STOP_WITHIN
from pipegap.trainer.trial import record_failure, run_trial

# What Tune asks of a driver, and tells it: the next trial, whether to stop, what is untracked.

GRACE = 2 * STOP_WITHIN
"""Seconds that running trials have to save a checkpoint. Slurm and Kubernetes give 30."""

Payload = Mapping[str, Any]
Bundles = list[dict[str, float]]


@contextmanager
def inherited_environment() -> Iterator[None]:
    """Keep Tune from giving trials variables beside those that their process inherits of its node.

    Ray starts a process anew for them, though one waits for work, and logs them: AWS keys too. The
    other variable that Tune always gives is for PyTorch Lightning.
    """
    passed_on, defaults = class_cache.ENV_VARS_TO_PROPAGATE, dict(class_cache.DEFAULT_ENV_VARS)
    keys = {name for name in passed_on if name.startswith("AWS_")}
    passed_on -= keys
    class_cache.DEFAULT_ENV_VARS.clear()
    try:
        yield
    finally:
        passed_on |= keys
        class_cache.DEFAULT_ENV_VARS.update(defaults)


class Offers(Searcher):
    """Suggests the trials of `work`: see Tune's `Searcher`.

    `payload` makes of a trial what Tune hands to a worker. At most one trial more is suggested than
    Ray has slots for. Tune's run ends when no trial runs here and `work` has none for now.
    """

    def __init__(
        self,
        work: WorkList,
        payload: Callable[[Trial], Payload],
        num_slots: Callable[[], int],
        asked_to_stop: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._work, self._payload = work, payload
        self._num_slots, self._asked_to_stop = num_slots, asked_to_stop
        self._live: dict[str, Trial] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune pickles its searcher for a restore that we never make."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the store alone says what is done."""

    def suggest(self, trial_id: str) -> Any:
        """Called by Tune for a new trial, which it names `trial_id`."""
        if self._asked_to_stop():
            return Searcher.FINISHED
        if len(self._live) > self._num_slots():
            return None  # Tune asks again later
        trial = self._work.next()
        if trial is not None:
            self._live[trial_id] = trial
            return {"trial": self._payload(trial)}
        return None if self._live or self._work.has_turns else Searcher.FINISHED

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Called by Tune when a trial has ended, for the last time if it failed."""
        trial = self._live.pop(trial_id)
        if result is not None and result.get("status") == Status.ELSEWHERE and not error:
            self._work.put_back(trial)


class StopWhenAsked(tune.Stopper):
    """Ends Tune's run when asked to, as soon as running trials have ended or GRACE is over.

    `running` holds the ids of the trials that run now; the display keeps it up to date.
    """

    def __init__(self, asked_to_stop: AskedToStop, running: Set[str]) -> None:
        flag: Any = ray.remote(StopFlag)
        self.flag = flag.options(num_cpus=0, max_restarts=-1).remote()
        self._asked_to_stop, self._running = asked_to_stop, running
        self._deadline: float | None = None
        self._waits_for: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune pickles its stopper for a restore that we never make."""
        return {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return False: no single trial is stopped."""
        return False

    def stop_all(self) -> bool:
        """Whether Tune's run shall end; Tune calls this again and again."""
        if self._deadline is None:
            if not self._asked_to_stop():
                return False
            self._deadline = time.monotonic() + GRACE
            self._waits_for = set(self._running)
        self.flag.set.remote()  # again and again: the actor may have been restarted
        still_running = self._waits_for & self._running
        return not still_running or time.monotonic() > self._deadline


class Untracked(tune.Callback):
    """Warns of the first trial that is not tracked at once, and of their number at the end."""

    def __init__(self) -> None:
        self._troubled: set[str] = set()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: object
    ) -> None:
        """Called by Tune for every row of a trial."""
        trouble = result.get("untracked")
        if trouble is None:
            return
        name = trial.config["trial"]["id"]
        if not self._troubled:
            say(f"warning: tracking: {name}: {trouble} (this does not affect the trials)")
        self._troubled.add(name)

    def on_experiment_end(self, trials: list[Any], **_: object) -> None:
        """Called by Tune when all trials have ended."""
        if len(self._troubled) > 1:
            troubled = sorted(self._troubled)
            names = ", ".join(troubled[:3]) + (", …" if len(troubled) > 3 else "")
            counts = f"{len(troubled)} of {len(trials)} trials"
            say(f"warning: tracking: {counts} are not tracked completely: {names}")


def num_slots(bundles: Bundles) -> int:
    """Return how many trials with these bundles the cluster has room for, with its nodes of now."""
    available = ray.cluster_resources()
    needed: dict[str, float] = {}
    for bundle in bundles:
        for resource, amount in bundle.items():
            needed[resource] = needed.get(resource, 0.0) + amount
    return min(
        (int(available.get(key, 0.0) / amount) for key, amount in needed.items() if amount),
        default=1,
    )


# The run itself: Tune in the driver, and `_train` in each worker.

REPORT_EVERY = 2.0
"""Seconds between the rows that a trial sends to the driver for its display."""
SHOWN = ("update", "tokens_per_second", "wall_seconds")

RETRIES = 2
"""How often a trial that failed or died resumes from its checkpoint before it counts as failed."""


def run_trials(
    session: Session, work: WorkList, planned: Sequence[Trial], expected: Expected | None = None
) -> None:
    """Run those trials that nobody else runs; each that ends leaves a result in the store.

    The display shows them among the `planned` ones, and the time left by what is `expected` until
    trials have a pace. Once the session is asked to stop, running trials save a checkpoint, from
    which the next call resumes. Raises BadInput if the cluster is too small for a trial.
    """
    view = session.title, planned, work.left, session.store, session.asked_to_stop
    with Display(*view, session.ends, DriverConsole(), expected) as display:
        _run_on_tune(session, work, display)


def _run_on_tune(session: Session, work: WorkList, display: Display) -> None:
    trials = work.left
    needed = {trial.trial_id: bundles(trial, session.gpus_per_trial) for trial in trials}
    for bundle in needed.values():
        require_room(bundle, ray.cluster_resources())
    smallest = min(needed.values(), key=lambda needs: sum(sum(b.values()) for b in needs))
    stop = StopWhenAsked(session.asked_to_stop, display.running)
    # In Ray's object store, once, in place of a copy in each trial's payload.
    shared = {"flag": stop.flag, "tracking": session.tracking, "store": session.store}
    train = tune.with_parameters(_train, **shared)
    tuner = tune.Tuner(
        tune.with_resources(train, lambda p: tune.PlacementGroupFactory(p["trial"]["bundles"])),
        tune_config=tune.TuneConfig(
            search_alg=Offers(
                work,
                lambda trial: _payload(trial, needed[trial.trial_id]),
                lambda: num_slots(smallest),
                session.asked_to_stop,
            ),
            num_samples=-1,  # until `Offers` says FINISHED
            # On a GPU the CUDA context of a trial stays with its process: a new process per trial.
            reuse_actors=all(trial.config["device"] == "cpu" for trial in trials),
            trial_name_creator=_name,
            trial_dirname_creator=_name,
        ),
        run_config=tune.RunConfig(
            storage_path=str(session.folder / "tune"),
            verbose=0,
            callbacks=[display, Untracked()],
            stop=stop,
            failure_config=tune.FailureConfig(max_failures=RETRIES),
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


def _payload(trial: Trial, needed: Bundles) -> Payload:
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


def _train(payload: Payload, flag: Any, tracking: Tracking, store: SweepStore) -> None:
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
        # The first evaluation compiles too, and may come long after the first updates.
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
        except Held:  # a BadInput, but no failure: another driver runs the trial
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
