"""The view of a running sweep."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sweeps.view.progress import STATUSES, Progress
from trainer.base.durations import duration
from trainer.base.status import ACTIVE, ENDED, Status

SHOWN = 8
"""How many running trials the view lists; the others are only counted."""
STYLES = {Status.FAILED: "bold red", Status.DIVERGED: "yellow", Status.RUNNING: "green"}


def render(title: str, progress: Progress, *, gaps: str = "", note: str = "") -> RenderableType:
    """The whole view: counts, pace, running trials, gap table, note."""
    parts: list[RenderableType] = [_head(title, progress), _counts(progress)]
    if any(progress.of(*ACTIVE)):
        parts.append(_running(progress))
    parts += [Text(text) for text in (gaps, note) if text]
    return Group(*parts)


def _head(title: str, progress: Progress) -> RenderableType:
    ended = sum(progress.counts[status] for status in ENDED)
    head = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=1.0, completed=progress.share, width=24)
    head.add_row(f"{title}: {ended} of {len(progress.trials)} trials ended", bar, pace(progress))
    return head


def pace(progress: Progress) -> str:
    """The share that is done, speed and time left: `41%, 9,120 tokens/s, about 4 min left`."""
    words = [f"{progress.share:.0%}"]
    if speed := progress.tokens_per_second:
        words.append(f"{speed:,.0f} tokens/s")
    if (left := progress.seconds_left) is not None:
        words.append(f"about {duration(left)} left")
    return ", ".join(words)


def _counts(progress: Progress) -> Text:
    counts = progress.counts
    words = [
        Text(f"{counts[status]} {status}", style=STYLES.get(status, ""))
        for status in STATUSES
        if counts[status]
    ]
    return Text(", ").join(words)


def _running(progress: Progress) -> RenderableType:
    """A table of the running trials, first those with the fewest updates left."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for column in ("trial", "arm", "optimizer"):
        table.add_column(column)
    for column in ("seed", "update", "tokens/s"):
        table.add_column(column, justify="right")
    table.add_column("where")
    running = sorted(
        progress.of(*ACTIVE), key=lambda pair: pair[0].plan.num_updates - pair[1].num_done
    )
    for trial, state in running[:SHOWN]:
        table.add_row(
            trial.plan.trial_id,
            trial.arm,
            trial.config["choices"]["optimizer"],
            str(trial.config["seed"]),
            f"{state.num_done} of {trial.plan.num_updates}",
            f"{state.tokens_per_second:,.0f}",
            state.where,
        )
    if rest := running[SHOWN:]:
        table.add_row(f"and {len(rest)} more")
    return table
