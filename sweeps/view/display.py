"""What a driver shows: a live view on a terminal, else a line for each trial that ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from ray.tune import Callback
from rich.console import Console
from rich.live import Live

from sweeps.expand import Trial
from sweeps.gaps import Gaps
from sweeps.progress import Progress
from sweeps.seldom import Seldom
from sweeps.view import duration, view
from trainer.record import read_result
from trainer.watch import AskedToStop

DRAW_EVERY, LOOK_EVERY = 0.5, 5.0
"""Seconds between frames, and between looks at the store for gaps and for others' trials."""
MEANS = {"stopped": "interrupted"}
"""Statuses that a trial of ours reports, and what the sweep calls them."""


class Display(Callback):
    """The view of a sweep: `todo` is what this driver runs of its `trials`, as Tune tells.

    What others run is looked up in the store. Nothing that fails here fails the sweep.
    """

    def __init__(
        self,
        title: str,
        trials: Sequence[Trial],
        todo: Sequence[Trial],
        results: Path,
        asked_to_stop: AskedToStop,
        console: Console,
    ) -> None:
        self.running: set[str] = set()
        """Ids of the trials that run now."""
        self._title, self._gaps, self._console = title, Gaps(results), console
        self._asked_to_stop = asked_to_stop
        self._ours = {trial.plan.trial_id for trial in todo}
        self._num_todo, self._num_ended = len(todo), 0
        self._progress = Progress(trials)
        self._progress.look(self._progress.trials)
        self._mark_others()
        for trial_id in self._ours:
            self._progress.states[trial_id].status = "waiting"
        self._live = Live(console=console, auto_refresh=False)  # a thread could hold up a signal
        self._look = Seldom(self._look_at_store, LOOK_EVERY)
        self._draw = Seldom(self._frame, DRAW_EVERY)

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            import_module("analysis.so_far")  # takes seconds, which no look shall
            self._live.start()
            self._draw.maybe()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._gaps.text = ""  # the report has them
            for trial_id in self.running:
                self._progress.states[trial_id].status = "interrupted"
            self._show(note="")
            self._live.stop()

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles its callbacks for a restore that is never made: a terminal has no copy."""
        return {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **_: object) -> None:
        """A trial starts, or starts again."""
        self.running.add(trial.config["trial"]["id"])
        self._progress.states[trial.config["trial"]["id"]].status = "running"

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: object) -> None:
        """A trial failed, and is not tried again."""
        self._end(trial.config["trial"], "failed")

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: object
    ) -> None:
        """A row of a running trial, or its last one."""
        point, status = trial.config["trial"], result["status"]
        state = self._progress.states[point["id"]]
        if status == "running":
            state.heard(result)
            state.where = f"{result['hostname']} pid {result['pid']}"
        else:
            state.num_done = result["num_done"]
            with suppress(OSError):  # the store is away for a moment
                recorded = read_result(self._progress.trials[point["id"]].folder) or {}
                state.wall_seconds = recorded.get("wall_seconds", 0.0)
            self._end(point, MEANS.get(status, status))

    def on_step_end(self, iteration: int, trials: list[Any], **_: object) -> None:
        """Comes several times a second."""
        if self._console.is_terminal:
            self._look.maybe()
            self._draw.maybe()

    def _end(self, point: dict[str, Any], status: str) -> None:
        left = self._progress.seconds_left  # at a pace that this trial is part of
        self.running.discard(point["id"])
        self._progress.states[point["id"]].status = status
        if status == "elsewhere":
            self._ours.discard(point["id"])
        self._num_ended += 1
        if not self._console.is_terminal:
            self._console.print(
                f"{self._num_ended}/{self._num_todo} {status} "
                f"{point['id']} {point['arm']} seed {point['config']['seed']}"
                + (f", about {duration(left)} left" if left else "")
            )

    def _look_at_store(self) -> None:
        with suppress(OSError):
            self._progress.look(self._progress.trials.keys() - self._ours)
        self._mark_others()
        self._gaps.refresh(self._progress, self._console.width)

    def _mark_others(self) -> None:
        for trial, state in self._progress.of("running"):
            if trial.plan.trial_id not in self._ours:
                state.status = "elsewhere"

    def _frame(self) -> None:
        stopping = f"stopping, still to save a checkpoint: {len(self.running)} trials"
        self._show(stopping if self._asked_to_stop() else "")

    def _show(self, note: str) -> None:
        with suppress(OSError):  # the terminal is gone
            frame = view(self._title, self._progress, gaps=self._gaps.text, note=note)
            self._live.update(frame, refresh=True)
