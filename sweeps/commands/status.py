"""Shows how far a sweep is that runs elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from rich.console import Console, RenderableType
from rich.live import Live

from sweeps.gaps import Gaps
from sweeps.progress import ENDED, Progress
from sweeps.request import Request, request
from sweeps.seldom import SHARE
from sweeps.standing import all_planned, look
from sweeps.view import view
from trainer.words import parse, take_flag

DONE = 0
LOOK_EVERY = 2.0
"""Seconds between looks of `watch=true`."""
WIDTH_OF_FILES = 240
"""Columns of what is printed elsewhere than on a terminal."""
KEYS = """\
sweep=, scale=, results= and all other keys as of `python -m sweeps`
watch=  true goes on looking until all trials ended, or Ctrl-C"""


class Watched:
    """A sweep, as its store tells."""

    def __init__(self, asked: Request) -> None:
        self._asked, self._gaps = asked, Gaps(asked.results)
        self._sweeps = look(asked)
        self.progress = Progress([])

    def look(self, width: int | None) -> RenderableType:
        """The view now, the gap table in `width` columns; None: Markdown."""
        self._sweeps = [sweep.again() for sweep in self._sweeps]
        trials = all_planned(self._sweeps)
        self.progress = Progress(trials, self.progress)
        self.progress.look(self.progress.trials)
        self._gaps.refresh(self.progress, width)
        note = ""
        if any(trial.plan.data_hash is None for trial in trials):
            note = "its data is not prepared here: trials cannot be recognised by their ids"
        return view(self._asked.label, self.progress, gaps=self._gaps.text, note=note)


def main(words: Sequence[str]) -> int:
    """Exit code 0, however the trials are; raises BadInput."""
    given = parse(words, "python -m sweeps status", __doc__ or "", KEYS)
    watch = take_flag(given, "watch")
    sweep = Watched(request([f"{key}={value}" for key, value in given.items()]))
    console = Console()
    width = console.width if console.is_terminal else None
    console.width = width or WIDTH_OF_FILES
    with suppress(KeyboardInterrupt):
        if watch and console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                _watch(sweep, width, lambda frame: live.update(frame, refresh=True))
        elif watch:
            _watch(sweep, width, console.print)
        else:
            console.print(sweep.look(width))
    return DONE


def _watch(sweep: Watched, width: int | None, show: Callable[[RenderableType], None]) -> None:
    """Shows the view at every look, to the end of all trials."""
    while True:
        started = time.monotonic()
        show(sweep.look(width))
        if all(state.status in ENDED for state in sweep.progress.states.values()):
            return
        time.sleep(max(LOOK_EVERY, (time.monotonic() - started) / SHARE))
