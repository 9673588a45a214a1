"""What a running sweep shows: one live line on a terminal, a line a finished trial elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ray.tune import Callback
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sweeps.expand import Trial


class Display(Callback):
    """Progress in updates over all trials that still had to run, with the time that is left."""

    def __init__(self, trials: Sequence[Trial], console: Console) -> None:
        self._updates = {trial.plan.trial_id: trial.plan.num_updates for trial in trials}
        self._done = dict.fromkeys(self._updates, 0)
        self._ended: Counter[str] = Counter()
        self.running: set[str] = set()
        """Ids of the trials that run now."""
        self._console, self._started = console, time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("updates"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=sum(self._updates.values()), left="")

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles its callbacks for a restore that is never made: a terminal has no copy."""
        return {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **_: object) -> None:
        """A trial starts, or starts again."""
        self.running.add(trial.config["trial"]["id"])

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: object) -> None:
        """A trial failed, and is not tried again."""
        self.running.discard(trial.config["trial"]["id"])
        self._end(trial.config["trial"], "failed")
        self._refresh()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: object
    ) -> None:
        """A row of a running trial, or its last one."""
        point, status = trial.config["trial"], result["status"]
        self._done[point["id"]] = result["num_done"]
        if status != "running":
            self.running.discard(point["id"])
            self._end(point, status)
        self._refresh()

    def _end(self, point: dict[str, Any], status: str) -> None:
        self._done[point["id"]] = self._updates[point["id"]]
        self._ended[status] += 1
        if not self._console.is_terminal:
            self._console.print(
                f"{sum(self._ended.values())}/{len(self._updates)} {status} "
                f"{point['id']} {point['arm']} seed {point['config']['seed']}{self._left()}"
            )

    def _refresh(self) -> None:
        ended = ", ".join(f"{count} {status}" for status, count in self._ended.items())
        description = f"{sum(self._ended.values())} of {len(self._updates)} trials ({ended or '…'})"
        done = sum(self._done.values())
        self._progress.update(
            self._task, completed=done, description=description, left=self._left()
        )

    def _left(self) -> str:
        done, total = sum(self._done.values()), sum(self._updates.values())
        if not done:
            return ""
        seconds = (time.monotonic() - self._started) * (total - done) / done
        return f", about {seconds / 60:.0f} min left"
