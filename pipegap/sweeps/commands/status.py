"""Shows the progress of a sweep that another process runs; without words, of all in the store."""

import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from rich.console import RenderableType
from rich.live import Live

from pipegap.analysis.table.text import aligned, terminal_width
from pipegap.sweeps.plan.sweep_plan import Round, SweepRequest
from pipegap.sweeps.request.command_line import Request, parse_request
from pipegap.sweeps.view.progress import Progress
from pipegap.sweeps.view.render import SHARE, GapTable, ReadConsole, render
from pipegap.trainer.base.cli import DONE, parse, take_flag
from pipegap.trainer.base.errors import ENDED, BadInput, Status
from pipegap.trainer.folder.wellformed import LIST_FAILED, Row, failures
from pipegap.trainer.store.bucket import StoreAway
from pipegap.trainer.store.opened import open_store, pulled
from pipegap.trainer.store.records import Record, records
from pipegap.trainer.store.snapshot import Snapshot

POLL_EVERY = 2.0
"""Seconds between two views with `watch=true`."""
WIDTH_OF_FILES = 240
"""Columns of the view if it is not printed on a terminal."""
KEYS = """\
sweep=, scale=, results= and all other keys as of `pipegap sweep`; without sweep=, one line for
each sweep that the store has a record of
watch=  true shows the progress until all trials have ended, or Ctrl-C"""


class WatchedSweep:
    """The progress of a sweep, as its store records it."""

    def __init__(self, request: Request) -> None:
        self._gaps = GapTable(request.results)
        self._now = Round.first(request, open_store(request.where))
        for sweep in self._now.sweeps:
            _require_asked(sweep.request, request.where)
        self.progress = Progress([])

    def render(self, width: int | None) -> RenderableType:
        """The view now. The gap table has `width` columns; with None it is Markdown."""
        with suppress(StoreAway):  # for a moment: what was seen last is shown
            self._now = self._now.again()
        trials, snapshot = self._now.planned, self._now.snapshot
        self.progress = Progress(trials, self.progress)
        self.progress.refresh(self.progress.trials, snapshot)
        self._gaps.refresh(self.progress, width)
        failed = [(t.name, row) for t in trials if (row := snapshot.failure(t)) is not None]
        notes = [*failures(failed, len(trials))]
        if any(trial.plan.data_hash is None for trial in trials):
            notes.append("its data is not prepared here: trials cannot be recognised by their ids")
        if closed := self._now.snapshot.closed:
            notes.append(closed)
        return render(
            self._now.title,
            self.progress,
            gaps=self._gaps.text,
            note="\n".join(notes),
        )


def main(words: Sequence[str]) -> int:
    """Exit code 0, whatever became of the trials. Raises BadInput."""
    values = parse(words, "pipegap status", __doc__ or "", KEYS)
    if not values.keys() - {"results"}:
        print(_overview(values.get("results", "results")))
        return DONE
    watch = take_flag(values, "watch")
    sweep = WatchedSweep(parse_request([f"{key}={value}" for key, value in values.items()]))
    console = ReadConsole()
    width = console.width if console.is_terminal else None
    console.width = width or WIDTH_OF_FILES
    with suppress(KeyboardInterrupt):
        if watch and console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                _watch(sweep, width, lambda frame: live.update(frame, refresh=True))
        elif watch:
            _watch(sweep, width, console.print)
        else:
            console.print(sweep.render(width))
    return DONE


def _overview(where: str) -> str:
    """Return a row per recorded sweep: how many of its trials ended how, and the command for more.

    Trials that run now are among those left: only the sweep's own view asks for their leases.
    """
    failed = dict[str, Row]()
    rows = [("sweep", "trials", *(str(status) for status in ENDED), "left")]
    more = ["more"]
    snapshot, results = Snapshot(), pulled(where)
    planned = set[str]()
    for record in records(results):
        planned |= record.trials.keys()
        result_of_trial = {key: snapshot.result(results / "trials" / key) for key in record.trials}
        finished = {key: result for key, result in result_of_trial.items() if result}
        ends = Counter(result["status"] for result in finished.values())
        failed |= {key: row for key, row in finished.items() if row["status"] == Status.FAILED}
        counts = (len(record.trials), *(ends[status] for status in ENDED))
        num_left = len(record.trials) - ends.total()
        rows.append((record.label, *map(str, (*counts, num_left))))
        more.append(_command(record, where))
    if len(rows) == 1:
        return f"{results} has no record of a sweep: pipegap sweep sweep=main makes one"
    lines = [*map("  ".join, zip(aligned(rows, str.rjust), more, strict=True))]
    if (width := terminal_width()) and max(map(len, lines)) > width:
        head, *table_rows = aligned(rows, str.rjust)
        lines = [
            head,
            *(f"{row}\n  {next_step}" for row, next_step in zip(table_rows, more[1:], strict=True)),
        ]
    if snapshot.closed:
        lines.append(snapshot.closed)
    if failed:
        lines += failures(failed.items(), len(planned))
        lines.append(f"all that failed: {shlex.join([*LIST_FAILED, *_store(where)])}")
    return "\n".join(lines)


def _store(where: str) -> list[str]:
    return [] if where == "results" else [f"results={where}"]


def _command(record: Record, where: str) -> str:
    """The command that shows the progress of a recorded sweep."""
    return shlex.join(["pipegap", "status", *record.given, *_store(where)])


def _require_asked(request: SweepRequest, where: str) -> None:
    """Raise BadInput for a sweep that was asked for here, but only in other words."""
    if request.record is None and request.records:
        commands = " or ".join(_command(record, where) for record in request.records)
        allowed = f"was run here with other words, or another file: {commands}"
        raise BadInput("sweep", request.name, allowed)


def _watch(sweep: WatchedSweep, width: int | None, show: Callable[[RenderableType], None]) -> None:
    """Calls `show` with a new view every few seconds until all trials have ended."""
    while True:
        started = time.monotonic()
        show(sweep.render(width))
        if all(state.status in ENDED for state in sweep.progress.states.values()):
            return
        time.sleep(max(POLL_EVERY, (time.monotonic() - started) / SHARE))
