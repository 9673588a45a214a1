"""The rounds of a driver, and what it looks at before: whether store, machine and data fit its
trials."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pipegap.sweeps.cluster.notices import Ends
from pipegap.sweeps.cluster.queue import WorkList
from pipegap.sweeps.plan import sweep_record
from pipegap.sweeps.plan.sweep_plan import Round
from pipegap.sweeps.request.expand import Trial
from pipegap.sweeps.view.progress import SILENT
from pipegap.trainer.base.children import require_compiler
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.resources import require_device
from pipegap.trainer.parts import open_data
from pipegap.trainer.store.bucket import StoreAway
from pipegap.trainer.store.store import SweepStore

POLL_EVERY = 0.5
"""Seconds between two questions to the queue, which limits the looks into the store itself."""


def run_rounds(sweep_round: Round, ends: Ends) -> tuple[Round, bool]:
    """Run the trials that can run, in rounds: those that decide which others do, then the others.

    This driver tries each trial once at most. Trials that another driver runs are waited for, and
    run here if it dies. The sweeps are recorded before, when a round changes them, and at the end.
    Returns the round at the end, and whether a signal or `ends` stopped it. Raises BadInput if
    another request has taken a label meanwhile.
    """
    request = sweep_round.request
    sweep_record.write(sweep_round, sweep_round.sweeps)
    if not sweep_round.runnable:
        return sweep_round, False
    print(_what_starts(sweep_round.runnable), flush=True)
    from pipegap.sweeps.cluster.connection import session  # Ray is slow

    wishes = request.gpus_per_trial, request.tracking
    with session(sweep_round.title, sweep_round.store, *wishes, ends) as running_session:
        from pipegap.sweeps.cluster.driver import run_trials
        from pipegap.sweeps.cluster.first_trial import try_first

        if len(sweep_round.todo) == len(sweep_round.planned):  # nothing of it has finished yet
            try_first(running_session, sweep_round.runnable, request.first_trial)
        if note := request.tracking.note(request.results):
            print(f"tracking  {note}", flush=True)
        work = WorkList(sweep_round.store)
        work.add(sweep_round.runnable)
        last_word = time.monotonic()
        while len(work) and not running_session.asked_to_stop():
            num_left = len(work)
            if work.is_ready():
                run_trials(running_session, work, sweep_round.planned, sweep_round.expected)
                last_word = time.monotonic()
            else:
                time.sleep(POLL_EVERY)
            if time.monotonic() - last_word > SILENT:
                last_word = time.monotonic()
                print(f"waits for {len(work)} trials that other drivers run", flush=True)
            if len(work) < num_left:  # a trial has ended, which may decide what runs next
                sweep_round = _next(sweep_round, running_session.asked_to_stop)
                work.add(sweep_round.runnable)
        stopped = running_session.asked_to_stop()
    sweep_round = sweep_round.again()
    # All of them, changed or not: what is left is priced by what has finished meanwhile.
    sweep_record.write(sweep_round, sweep_round.sweeps)
    return sweep_round, stopped


def _what_starts(trials: Sequence[Trial]) -> str:
    """Say what happens before the first trial ends, which a log would not show for minutes."""
    address = os.environ.get("RAY_ADDRESS")
    does = f"joins Ray at {address}" if address else "starts Ray"
    if any(trial.config["compile"] == "update" for trial in trials):
        does += "; the first trials compile what this machine has not compiled yet"
    return does


def _next(sweep_round: Round, asked_to_stop: Callable[[], bool]) -> Round:
    """Return the next round; what it changes is recorded. While the store is away it is asked
    again."""
    while not asked_to_stop():
        try:
            new = sweep_round.again()
            pairs = zip(sweep_round.sweeps, new.sweeps, strict=True)
            sweep_record.write(new, [sweep for old, sweep in pairs if sweep != old])
            return new
        except StoreAway:
            time.sleep(POLL_EVERY)
    return sweep_round


def require_ready(store: SweepStore, todo: Sequence[Trial]) -> None:
    """Raise BadInput if the store, this machine or the data does not fit the trials to do.

    It names everything that is missing: people should not fetch a GPU to learn that data is not
    there.
    """
    store.require_usable()
    # One trial of those that need the same of a machine: data may be large to look at.
    needs = ("device", "compile", "data", "seq_len", "model")
    distinct = {json.dumps([trial.config[key] for key in needs]): trial.config for trial in todo}
    missing = {str(error): error for config in distinct.values() for error in _missing_of(config)}
    if missing:
        first, *more_problems = missing.values()
        also = "".join(f"; also {error}" for error in more_problems)
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
