"""What Tune asks of a driver, and tells it: the next trial, whether to stop, what is untracked."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

import ray
from ray.tune import Callback, Stopper
from ray.tune.execution import class_cache
from ray.tune.search import Searcher

from pipegap.sweeps.cluster.queue import WorkList
from pipegap.sweeps.cluster.stop_flag import StopFlag
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.status import Status
from pipegap.trainer.ranks.supervisor import AskedToStop
from pipegap.trainer.training import STOP_WITHIN

GRACE = 2 * STOP_WITHIN
"""Seconds that running trials have to save a checkpoint. Slurm and Kubernetes give 30."""
NAMED = 3
"""How many trials the warning about tracking names at the end."""

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
            return None
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


class StopWhenAsked(Stopper):
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


class Untracked(Callback):
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
            _warn(f"{name}: {trouble} (this does not affect the trials)")
        self._troubled.add(name)

    def on_experiment_end(self, trials: list[Any], **_: object) -> None:
        """Called by Tune when all trials have ended."""
        if len(self._troubled) > 1:
            troubled = sorted(self._troubled)
            names = ", ".join(troubled[:NAMED]) + (", …" if len(troubled) > NAMED else "")
            _warn(f"{len(troubled)} of {len(trials)} trials are not tracked completely: {names}")


def _warn(message: str) -> None:
    print(f"warning: tracking: {message}", file=sys.stderr, flush=True)


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
