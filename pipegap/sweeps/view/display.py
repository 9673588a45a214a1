"""What a driver shows: a live view on a terminal, else one line per trial that ended."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from ray.tune import Callback
from rich.console import Console
from rich.live import Live

from pipegap.sweeps.request.expand import Expected, Trial
from pipegap.sweeps.view.progress import SILENT, Progress
from pipegap.sweeps.view.render import LIBRARIES, GapTable, Throttled, render
from pipegap.trainer.base.children import load
from pipegap.trainer.base.cli import duration
from pipegap.trainer.base.errors import Status
from pipegap.trainer.folder.wellformed import why_failed
from pipegap.trainer.ranks.spawn import AskedToStop
from pipegap.trainer.store.bucket import StoreAway
from pipegap.trainer.store.snapshot import Snapshot
from pipegap.trainer.store.store import SweepStore

DRAW_EVERY, READ_EVERY = 0.5, 5.0
"""Seconds between two frames, and between two reads of the store for gaps and others' trials."""
SLOW = 5.0
"""How many times as long as planned trials take before the view says so."""
CURE = "and Ray's workers come last: RAY_worker_niceness=0 puts them on a par"
"""What helps on a machine on which others work: by itself Ray gives its workers niceness 15."""
FOR_SWEEP = {Status.STOPPED: Status.INTERRUPTED}
"""Status that a worker reports → status of the trial in the view, where they differ."""


class Display(Callback):
    """Shows the progress of a sweep's `trials`, of which this driver runs `todo`, with others.
    `ends` is called at the end of each that ran here, with its id, name, status and error, and the
    share of all work that is done.

    Tune's callbacks report the trials that started here; the store is read for the others. No
    error in here ends the sweep.
    """

    def __init__(
        self,
        title: str,
        trials: Sequence[Trial],
        todo: Sequence[Trial],
        store: SweepStore,
        asked_to_stop: AskedToStop,
        ends: Callable[[str, str, Status, str, float], object],
        console: Console,
        expected: Expected | None = None,
    ) -> None:
        self.running: set[str] = set()
        """Ids of the trials that run now."""
        self._title, self._gap_table, self._console = title, GapTable(store.folder), console
        self._store, self._asked_to_stop, self._ends = store, asked_to_stop, ends
        self._todo = {trial.plan.trial_id for trial in todo}
        self._started: set[str] = set()
        self._num_ended = 0
        self._progress, self._seen = Progress(trials, expected=expected), Snapshot()
        self._progress.refresh(self._progress.trials, self._seen)
        self._mark_others()  # none runs here yet: whatever the store says runs, runs elsewhere
        self._live = Live(console=console, auto_refresh=False)  # a thread could delay a signal
        self._read = Throttled(self._read_store, READ_EVERY)
        self._draw = Throttled(self._frame, DRAW_EVERY)
        self._break_silence = Throttled(self._say_what_it_waits_for, READ_EVERY)
        self._last_end, self._has_said_slow = time.monotonic(), False

    def __enter__(self) -> "Display":
        if self._console.is_terminal:
            for library in LIBRARIES:  # before the first trial, not in a callback of Tune
                import_module(library)
            self._live.start()
            self._draw()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._gap_table.text = ""  # the report has it
            for trial_id in self.running:
                self._progress.states[trial_id].status = Status.INTERRUPTED
            self._show(note="")
            self._live.stop()

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune pickles its callbacks for a restore that we never make."""
        return {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **_: object) -> None:
        """Called by Tune when a trial starts, or starts again."""
        trial_id = trial.config["trial"]["id"]  # Tune's `config` is what `Offers` suggested
        self.running.add(trial_id)
        self._started.add(trial_id)
        self._progress.states[trial_id].status = Status.RUNNING

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: object) -> None:
        """Called by Tune when a trial has failed for the last time."""
        self._end(trial.config["trial"], Status.FAILED, str(trial.get_pickled_error() or ""))

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: object
    ) -> None:
        """Called by Tune for every row that a worker reports; the last one has its final status."""
        payload, status = trial.config["trial"], Status(result["status"])
        state = self._progress.states[payload["id"]]
        if status == Status.RUNNING:
            state.update(result, result["warm"])
            state.where = f"{result['hostname']} pid {result['pid']}"
        else:
            state.num_done, state.wall_seconds = result["num_done"], result.get("wall_seconds", 0.0)
            state.warm = result["warm"]
            self._end(payload, FOR_SWEEP.get(status, status), result.get("error", ""))

    def on_step_end(self, iteration: int, trials: list[Any], **_: object) -> None:
        """Called by Tune several times per second."""
        if self._console.is_terminal:
            self._read()
            self._draw()
        else:
            self._break_silence()

    def _say_what_it_waits_for(self) -> None:
        """In a log, where nothing else is said until a trial ends."""
        lines = list[str]()
        if (slow := self._slow()) and not self._has_said_slow:
            self._has_said_slow = True
            lines.append(slow)
        if time.monotonic() - self._last_end > SILENT:
            self._last_end = time.monotonic()
            lines.append(f"no trial has ended for {duration(SILENT)}: {self._progress.waits_for}")
        for line in lines:
            self._print(line)

    def _slow(self) -> str:
        """What to do if trials take far longer than planned; empty if they do not."""
        if (times := self._progress.slowdown) < SLOW:
            return ""
        why = "" if os.environ.get("RAY_ADDRESS") else f": {load()}, {CURE}"
        return f"trials take {times:.0f} times as long as planned{why}"

    def _end(self, payload: dict[str, Any], status: Status, error: str) -> None:
        seconds_left = self._progress.seconds_left  # at a pace that includes this trial's
        self.running.discard(payload["id"])
        self._progress.states[payload["id"]].status = status
        if status == Status.ELSEWHERE:
            self._started.discard(payload["id"])  # from now on the store is read for it
            return
        self._num_ended, self._last_end = self._num_ended + 1, time.monotonic()
        name = self._progress.trials[payload["id"]].name
        self._ends(payload["id"], name, status, error, self._progress.share)
        if not self._console.is_terminal:
            why = f": {why_failed(error)}" if status == Status.FAILED else ""
            time_left = f", about {duration(seconds_left)} left" if seconds_left else ""
            number = f"{self._num_ended}/{len(self._todo)}"
            self._print(f"{number} {status} {payload['id']} {name}{why}{time_left}")

    def _print(self, line: str) -> None:
        """Prints a line of a log as it is: brackets in it are no markup of rich's."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _read_store(self) -> None:
        with suppress(OSError, StoreAway):
            self._store.pull()
            self._seen = self._seen.again()
            # Not of trials that started here: Tune's callbacks know more than the store.
            self._progress.refresh(self._progress.trials.keys() - self._started, self._seen)
        self._mark_others()
        self._gap_table.refresh(self._progress, self._console.width)

    def _mark_others(self) -> None:
        """Say of trials that did not start here who runs them, and which wait for this driver."""
        for trial, state in self._progress.of(Status.RUNNING):
            if trial.plan.trial_id not in self._started:
                state.status = Status.ELSEWHERE
        for trial, state in self._progress.of(Status.FAILED, Status.INTERRUPTED):
            if trial.plan.trial_id in self._todo - self._started:
                state.status = Status.WAITING

    def _frame(self) -> None:
        stopping = f"stopping: {len(self.running)} trials have still to save a checkpoint"
        self._show(stopping if self._asked_to_stop() else self._slow())

    def _show(self, note: str) -> None:
        with suppress(OSError):  # the terminal may be gone
            frame = render(self._title, self._progress, gaps=self._gap_table.text, note=note)
            self._live.update(frame, refresh=True)
