"""What a driver shows: a live view with its gap table on a terminal, else one line per trial that
ended.
"""

import os
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ray.tune import Callback
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from pipegap.sweeps.request.expand import Expected, Trial
from pipegap.sweeps.view.progress import SILENT, STATUSES, Progress
from pipegap.trainer.base.children import load
from pipegap.trainer.base.cli import duration, on_terminal
from pipegap.trainer.base.errors import ACTIVE, ENDED, Status
from pipegap.trainer.folder.wellformed import why_failed
from pipegap.trainer.ranks.spawn import AskedToStop
from pipegap.trainer.store.bucket import StoreAway
from pipegap.trainer.store.snapshot import Snapshot
from pipegap.trainer.store.store import SweepStore

# The view of a running sweep with its gap table, the consoles that show it, and how often it may
# be made.

SHOWN = 8
"""How many running trials the view lists; the others are only counted."""
COLUMNS = ("trial", "arm", "optimizer", "seed", "update", "tokens/s", "where")
MOST_NEEDED = 5
"""Columns of running trials that are shown however narrow the terminal is."""
WIDE = 10_000
"""Letters of a terminal on which every table fits: there its natural width is measured."""
SHARE = 0.02
"""The largest share of its caller's time that a view may take."""
STYLES = {Status.FAILED: "bold red", Status.DIVERGED: "yellow", Status.RUNNING: "green"}
LIBRARIES = (
    "pipegap.analysis.statistics.gaps",
    "pipegap.analysis.statistics.text",
    "pipegap.analysis.table.load",
)
"""What a table needs. To import it takes seconds, which no callback may."""


def render(title: str, progress: Progress, *, gaps: str = "", note: str = "") -> RenderableType:
    """Return the whole view: counts, pace, running trials, gap table, note."""
    parts: list[RenderableType] = [_head(title, progress), _counts(progress)]
    if any(progress.of(*ACTIVE)):
        parts.append(_Running(progress))
    parts += [Text(text) for text in (gaps, note) if text]
    return Group(*parts)


def _head(title: str, progress: Progress) -> RenderableType:
    num_ended = sum(progress.counts[status] for status in ENDED)
    bar = ProgressBar(total=1.0, completed=progress.share, width=24)
    line = Table.grid(padding=(0, 1))
    line.add_row(bar, pace(progress))
    return Group(Text(f"{title}: {num_ended} of {len(progress.trials)} trials ended"), line)


def pace(progress: Progress) -> str:
    """Return share done, speed and time left: `41%, 9,120 tokens/s, about 4 min left`."""
    words = [f"{progress.share:.0%}"]
    if speed := progress.tokens_per_second:
        words.append(f"{speed:,.0f} tokens/s")
    if (seconds_left := progress.seconds_left) is not None:
        words.append(f"about {duration(seconds_left)} left")
    return ", ".join(words)


def _counts(progress: Progress) -> Text:
    counts = progress.counts
    words = [
        Text(f"{counts[status]} {status}", style=STYLES.get(status, ""))
        for status in STATUSES
        if counts[status]
    ]
    return Text(", ").join(words)


@dataclass(frozen=True)
class _Running:
    """A table of the running trials, first those with the fewest updates left.

    It has no more columns than fit: none is cut.
    """

    progress: Progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(max_width=WIDE)
        tables = map(self._table, range(len(COLUMNS), MOST_NEEDED - 1, -1))
        fitting = (
            table
            for table in tables
            if console.measure(table, options=wide).maximum <= options.max_width
        )
        yield next(fitting, self._table(MOST_NEEDED))  # the widest table that fits

    def _table(self, num_columns: int) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
        for column in COLUMNS[:num_columns]:
            is_number = column in ("seed", "update", "tokens/s")
            table.add_column(column, justify="right" if is_number else "left", overflow="fold")
        running = sorted(
            self.progress.of(*ACTIVE), key=lambda pair: pair[0].plan.num_updates - pair[1].num_done
        )
        for trial, state in running[:SHOWN]:
            cells = (
                trial.plan.trial_id,
                trial.arm,
                trial.config["choices"]["optimizer"],
                str(trial.config["seed"]),
                f"{state.num_done} of {trial.plan.num_updates}",
                f"{state.tokens_per_second:,.0f}",
                state.where,
            )
            table.add_row(*cells[:num_columns])
        if more_running := running[SHOWN:]:
            table.add_row(f"and {len(more_running)} more")
        return table


class OwnConsole(Console):
    """A console that colours and redraws on a terminal alone."""

    def __init__(self) -> None:
        super().__init__(force_terminal=on_terminal())


class ReadConsole(OwnConsole):
    """The console of a command that only shows: the command ends when nobody reads (`… | head`)."""

    @override
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich's own raises SystemExit(1)


class DriverConsole(OwnConsole):
    """The console of a driver: it falls silent when nobody reads, and the trials go on."""

    @override
    def on_broken_pipe(self) -> None:
        self.quiet = True


class Throttled:
    """Calls `work` when it is called itself, unless it did so a moment ago.

    Two calls of `work` start at least `every` seconds apart, or so far that it takes at most SHARE
    of the time. `clock` returns seconds.
    """

    def __init__(
        self, work: Callable[[], None], every: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._work, self._every, self._clock = work, every, clock
        self._next = clock()

    def __call__(self) -> None:
        """Call `work` if it is time."""
        started = self._clock()
        if started < self._next:
            return
        self._work()
        end = self._clock()
        # Counted from the end: work that takes longer than `every` still leaves its caller time.
        self._next = end + max(self._every, (end - started) / SHARE)


class GapTable:
    """The text of the gap table of a sweep's trials."""

    def __init__(self, results: Path) -> None:
        self.text = ""
        """The table, or why it cannot be made; empty while there is no pair."""
        self._results, self._num_ended = results, 0

    def refresh(self, progress: Progress, width: int | None) -> None:
        """Make the table again if trials have ended since, `width` columns wide; None: in Markdown.

        If that fails, the error is the text: a sweep must not end because of its view.
        """
        num_ended = sum(progress.counts[status] for status in ENDED)
        if num_ended == self._num_ended:  # only a trial that ends adds a pair
            return
        try:
            self.text = _gaps_so_far(self._results, [*progress.trials], width)
            self._num_ended = num_ended
        except Exception as error:
            self.text = f"no gaps now: {error}"


def _gaps_so_far(results: Path, trial_ids: Collection[str], width: int | None) -> str:
    """Return the gaps among these trials of a store; empty while there is no pair.

    Raises as `load` and `gaps` do; the report at the end repeats their warnings.
    """
    from pipegap.analysis.statistics.gaps import gaps
    from pipegap.analysis.statistics.text import printed_gaps
    from pipegap.analysis.table.load import load

    if not results.is_dir():
        return ""
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        table = gaps(load(results, trial_ids))
    return printed_gaps(table, width)


# The callbacks by which Tune tells a driver what to show.

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
        self.running.add(trial.config["trial"]["id"])
        self._started.add(trial.config["trial"]["id"])
        self._progress.states[trial.config["trial"]["id"]].status = Status.RUNNING

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
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

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
            self._console.print(
                f"{self._num_ended}/{len(self._todo)} {status} "
                f"{payload['id']} {name}"
                + (f": {why_failed(error)}" if status == Status.FAILED else "")
                + (f", about {duration(seconds_left)} left" if seconds_left else ""),
                markup=False,
                highlight=False,
                soft_wrap=True,
            )

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
