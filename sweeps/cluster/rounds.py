"""The rounds of a driver: it has a cluster, and runs trials of a store there until it is asked to
stop.

Before it, a driver looks whether store, machine and data fit its trials. Ray and Tune are imported
when a session begins: a sweep with nothing to do needs neither.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pipegap.sweeps.cluster.queue import WorkList
from pipegap.sweeps.cluster.session import Ends, Session
from pipegap.sweeps.plan import sweep_record
from pipegap.sweeps.plan.round import Round
from pipegap.sweeps.request.expand import Expected, Trial
from pipegap.sweeps.tracking.choice import Tracking
from pipegap.trainer.base.cli import stopping
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.resources import require_device
from pipegap.trainer.base.scratch import require_compiler
from pipegap.trainer.parts import open_data
from pipegap.trainer.store.bucket import StoreAway
from pipegap.trainer.store.store import SweepStore

SAYS = "running trials save a checkpoint and stop"
"""What a driver says when a signal asks it to stop."""
POLL_EVERY = 0.5
"""Seconds between two questions to the queue, which limits the looks into the store itself."""


def try_first(session: Session, todo: Sequence[Trial], wanted: bool | None) -> None:
    """Train the first updates of a trial: see `first_trial.try_first`."""
    from pipegap.sweeps.cluster import first_trial

    where, asked_to_stop = session.store.name, session.asked_to_stop
    first_trial.try_first(todo, wanted, session.gpus_per_trial, where, asked_to_stop)


def run_trials(
    session: Session,
    work: WorkList,
    planned: Sequence[Trial],
    expected: Expected | None = None,
) -> None:
    """Run trials that nobody else runs: see `driver.run_trials`."""
    from pipegap.sweeps.cluster import driver

    driver.run_trials(session, work, planned, expected)


@contextmanager
def session(
    title: str,
    store: SweepStore,
    gpus_per_trial: float,
    tracking: Tracking,
    ends: Ends | None = None,
) -> Iterator[Session]:
    """Yield a session, which a signal asks to stop, and so may its `ends`.

    Raises Unavailable if Ray does not start, and BadInput if a node of the cluster does not see the
    store.
    """
    from pipegap.sweeps.cluster.connection import cluster, require_seen_by_nodes

    # Ray installs its signal handlers when it starts; `stopping` replaces them after that.
    with cluster() as (folder, asked_before), stopping(SAYS) as asked_since:
        import pipegap.sweeps.cluster.driver  # noqa: F401  # Tune is large: while Ray's processes start

        require_seen_by_nodes(store)

        followed = ends or Ends()

        def asked_to_stop() -> bool:
            return asked_before() or asked_since() or followed.has_failed()

        yield Session(title, store, gpus_per_trial, tracking, folder, asked_to_stop, followed)


def run_rounds(now: Round, ends: Ends) -> tuple[Round, bool]:
    """Run the trials that can run, in rounds: those that decide which others do, then the others.

    This driver tries each trial once at most. Trials that another driver runs are waited for, and
    run here if it dies. Returns the round at the end, and whether a signal or `ends` stopped it.
    """
    request = now.request
    if not now.runnable:
        return now, False
    print(_what_starts(now.runnable), flush=True)
    with session(now.title, now.store, request.gpus_per_trial, request.tracking, ends) as here:
        if len(now.todo) == len(now.planned):
            try_first(here, now.runnable, request.first_trial)
        if note := request.tracking.note(request.results):
            print(f"tracking  {note}", flush=True)
        work = WorkList(now.store)
        work.add(now.runnable)
        while len(work) and not here.asked_to_stop():
            num_left = len(work)
            if work.queue.is_ready():
                run_trials(here, work, now.planned, now.expected)
            else:
                time.sleep(POLL_EVERY)
            if len(work) < num_left:
                now = _next(now, here.asked_to_stop)
                work.add(now.runnable)
        stopped = here.asked_to_stop()
    return now.again(), stopped


def _what_starts(trials: Sequence[Trial]) -> str:
    """Say what happens before the first trial ends, which a log would not show for minutes."""
    address = os.environ.get("RAY_ADDRESS")
    does = f"joins Ray at {address}" if address else "starts Ray"
    if any(trial.config["compile"] == "update" for trial in trials):
        does += "; the first trials compile what this machine has not compiled yet"
    return does


def _next(now: Round, asked_to_stop: Callable[[], bool]) -> Round:
    """Return the next round; what it changes is recorded. While the store is away it is asked
    again."""
    while not asked_to_stop():
        try:
            new = now.again()
            pairs = zip(now.sweeps, new.sweeps, strict=True)
            sweep_record.write(new, [sweep for old, sweep in pairs if sweep != old])
            return new
        except StoreAway:
            time.sleep(POLL_EVERY)
    return now


def require_ready(store: SweepStore, todo: Sequence[Trial]) -> None:
    """Raise BadInput if the store, this machine or the data does not fit the trials to do.

    It names everything that is missing: people should not fetch a GPU to learn that data is not
    there.
    """
    store.require_usable()
    distinct = {_needs(trial.config): trial.config for trial in todo}
    missing = {str(error): error for config in distinct.values() for error in _missing_of(config)}
    if missing:
        first, *others = missing.values()
        also = "".join(f"; also {error}" for error in others)
        raise BadInput(first.key, first.value, f"{first.allowed}{also}")


def _missing_of(config: Mapping[str, Any]) -> Iterator[BadInput]:
    """Yield what this machine lacks for a trial."""
    checks: list[Callable[[], object]] = [lambda: open_data(config)]
    if not os.environ.get("RAY_ADDRESS"):  # else the driver checks the cluster's resources
        checks.insert(0, lambda: require_device(config["device"]))
        if config["compile"] == "update":
            checks.append(require_compiler)
    for check in checks:
        try:
            check()
        except BadInput as error:
            yield error


def _needs(config: Mapping[str, Any]) -> str:
    """Return the keys that say what a trial needs of a machine, as JSON."""
    return json.dumps([config[key] for key in ("device", "compile", "data", "seq_len", "model")])
