"""The view of a running sweep with its gap table, the consoles that show it, and how often it may
be made."""

import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from pipegap.sweeps.view.progress import STATUSES, Progress
from pipegap.trainer.base.cli import duration, on_terminal
from pipegap.trainer.base.errors import ACTIVE, ENDED, Status

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
