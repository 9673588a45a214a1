"""Shows the progress of a sweep that another process runs; without words, of all in the store.

e.g. pipegap status sweep=main scale=tiny
"""

import json
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from rich.console import RenderableType
from rich.live import Live

from pipegap.analysis.table.text import aligned, terminal_width
from pipegap.sweeps.plan.sweep_plan import Round, SweepRequest
from pipegap.sweeps.request.command_line import Request, parse_request
from pipegap.sweeps.request.expand import Trial
from pipegap.sweeps.view.progress import Progress, State
from pipegap.sweeps.view.render import SHARE, GapTable, ReadConsole, render
from pipegap.trainer.base.cli import DONE, parse, take_choice, take_flag
from pipegap.trainer.base.errors import ENDED, BadInput, Status
from pipegap.trainer.folder.wellformed import LIST_FAILED, Row, failures, why_failed
from pipegap.trainer.store.bucket import StoreAway
from pipegap.trainer.store.opened import local_folder, open_store, pulled
from pipegap.trainer.store.records import Record, records
from pipegap.trainer.store.snapshot import Snapshot

POLL_EVERY = 2.0
"""Seconds between two views with `watch=true`."""
WIDTH_OF_FILES = 240
"""Columns of the view if it is not printed on a terminal."""
KEYS = """\
sweep=, scale=, results= and all other keys as of `pipegap sweep`; without sweep=, one line for
each sweep that the store has a record of
watch=  true shows the progress until all trials have ended, or Ctrl-C
format=  text, or json: each trial's state, and what is next and when to look again"""
STALLED = 600.0
"""Seconds without a row, or those of 20 updates if they are more, after which a trial that a
process holds counts as stalled."""
SOONEST, LATEST = 10.0, 600.0
"""Seconds after which a program should look again, at least and at most."""
STATES = {
    Status.COMPLETED: "finished",
    Status.DIVERGED: "finished",
    Status.RUNNING: "training",
    Status.ELSEWHERE: "training",
}
"""What JSON calls a status; any other one is called as it is."""
RESULT_KEYS = ("status", "final_val_loss", "num_updates", "wall_seconds")
"""What of a result JSON shows."""


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
        trials, snapshot = self._refresh()
        self._gaps.refresh(self.progress, width)
        failed = [(t.name, row) for t in trials if (row := snapshot.failure(t)) is not None]
        notes = [*failures(failed, len(trials))]
        if any(trial.plan.data_hash is None for trial in trials):
            notes.append("its data is not prepared here: trials cannot be recognised by their ids")
        if closed := self._now.snapshot.closed:
            notes.append(closed)
        return render(self._now.title, self.progress, gaps=self._gaps.text, note="\n".join(notes))

    def _refresh(self) -> tuple[Sequence[Trial], Snapshot]:
        with suppress(StoreAway):  # for a moment: what was seen last is shown
            self._now = self._now.again()
        trials, snapshot = self._now.planned, self._now.snapshot
        self.progress = Progress(trials, self.progress)
        self.progress.refresh(self.progress.trials, snapshot)
        return trials, snapshot

    def as_json(self, words: Sequence[str]) -> dict[str, Any]:
        """The view now for programs: each trial's state, the counts of states, the seconds left,
        and what is next. `words`: those of the sweep."""
        trials, snapshot = self._refresh()
        states = self.progress.states
        nodes = [_as_json(trial, states[trial.trial_id], snapshot) for trial in trials]
        counts = Counter(node["state"] for node in nodes)
        results, where = self._now.request.results, _store(self._now.request.where)
        run = ["pipegap", "sweep", *(w for w in words if not w.startswith("results=")), *where]
        seconds = self.progress.seconds_left
        look_again = None
        if counts["training"]:
            what, command = "wait", []
            # LATEST where nobody knows a pace yet.
            look_again = round(min(max(seconds or LATEST, SOONEST), LATEST))
        elif counts["stalled"]:
            what, command = "look at what stalled", ["pipegap", "list", "status=running", *where]
        elif len(nodes) > counts["finished"] + counts["failed"]:
            what, command = "run what is left", run
        elif counts["failed"]:
            what, command = "look at what failed", [*LIST_FAILED, *where]
        else:  # a sweep that is done prints its report again
            what, command = "read the answer", run
        return {
            "sweep": self._now.title,
            "states": dict(counts),
            "share_done": round(self.progress.share, 4),
            "seconds_left": None if seconds is None else round(seconds),
            "next": {"do": what, "command": shlex.join(command), "look_again_seconds": look_again},
            "reports": [str(results / "reports" / plan.label) for plan in self._now.sweeps],
            "trials": nodes,
        }


def _as_json(trial: Trial, state: State, snapshot: Snapshot) -> dict[str, Any]:
    """A trial for programs. `result` is what result.json holds of it, which was read and is whole;
    `checkpoint_update` is that of the newest checkpoint, by its name."""
    from pipegap.trainer.folder.record import newest_first  # torch is slow

    rows, num_updates = trial.folder / "metrics.jsonl", trial.plan.num_updates
    age = time.time() - rows.stat().st_mtime if rows.is_file() else None
    seconds_per_update = state.wall_seconds / state.num_done if state.num_done else 0.0
    name = STATES.get(state.status, str(state.status))
    # A heartbeat shows that a process lives; only rows show that it trains. Updates of a large
    # model may take longer than STALLED.
    is_late = age is not None and age > max(STALLED, 20 * seconds_per_update)
    if state.status == Status.RUNNING and is_late:
        name = "stalled"
    is_active = name in ("training", "stalled")
    result, failure = snapshot.finished(trial), snapshot.failure(trial)
    checkpoints = newest_first(trial.folder)
    seconds_left = seconds_per_update * (num_updates - state.num_done)
    return {
        "trial": trial.trial_id,
        "name": trial.name,
        "arm": trial.arm,
        "seed": trial.config["seed"],
        "state": name,
        "status": str(state.status),
        "update": state.num_done,
        "num_updates": num_updates,
        "row_age_seconds": round(age, 1) if age is not None and is_active else None,
        "tokens_per_second": round(state.tokens_per_second) if is_active else None,
        "seconds_left": round(seconds_left) if is_active and state.num_done else None,
        "where": state.where,
        "checkpoint_update": checkpoints[0].num_updates if checkpoints else None,
        "result": {key: result[key] for key in RESULT_KEYS} if result else None,
        "error": why_failed(str(failure.get("error") or "")) if failure else None,
    }


def main(words: Sequence[str]) -> int:
    """Exit code 0, whatever became of the trials. Raises BadInput."""
    values = parse(words, "pipegap status", __doc__ or "", KEYS)
    form = take_choice(values, "format", ("text", "json"))
    if not values.keys() - {"results"}:
        where = values.get("results", "results")
        print(json.dumps(_counted(where), indent=1) if form == "json" else _overview(where))
        return DONE
    watch = take_flag(values, "watch")
    sweep_words = [f"{key}={value}" for key, value in values.items()]
    sweep = WatchedSweep(parse_request(sweep_words))
    if form == "json":
        if watch:
            raise BadInput("format", form, "is one view: watch=true shows text")
        print(json.dumps(sweep.as_json(sweep_words), indent=1))
        return DONE
    console = ReadConsole()
    # In a file the gap table is Markdown, and the lines around it are not to be wrapped.
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


def _recorded(where: str, snapshot: Snapshot) -> Iterator[tuple[Record, dict[str, Row]]]:
    """The recorded sweeps of a store, each with the results of its trials that have one, by id.

    A trial without a result counts as left, also while it runs: only the sweep's own view asks for
    leases.
    """
    results = pulled(where)
    for record in records(results):
        rows = {key: snapshot.result(results / "trials" / key) for key in record.trials}
        yield record, {key: row for key, row in rows.items() if row}


def _counted(where: str) -> list[dict[str, Any]]:
    """How many trials of each recorded sweep ended how, and the command for more."""
    nodes = []
    for record, rows in _recorded(where, Snapshot()):
        ends = Counter(row["status"] for row in rows.values())
        nodes.append(
            {
                "sweep": record.label,
                "trials": len(record.trials),
                **{str(status): ends[status] for status in ENDED},
                "left": len(record.trials) - len(rows),
                "command": f"{_command(record, where)} format=json",
            }
        )
    return nodes


def _overview(where: str) -> str:
    """Return a row per recorded sweep: how many of its trials ended how, and the command for more.

    Trials that run now are among those left.
    """
    snapshot, failed, planned = Snapshot(), dict[str, Row](), set[str]()
    rows, commands = [("sweep", "trials", *map(str, ENDED), "left")], ["more"]
    for record, results in _recorded(where, snapshot):
        planned |= record.trials.keys()
        failed |= {key: row for key, row in results.items() if row["status"] == Status.FAILED}
        ends = Counter(row["status"] for row in results.values())
        num_trials, counts = len(record.trials), [ends[status] for status in ENDED]
        numbers = (num_trials, *counts, num_trials - len(results))
        rows.append((record.label, *map(str, numbers)))
        commands.append(_command(record, where))
    if len(rows) == 1:
        return f"{local_folder(where)} has no record of a sweep: pipegap sweep sweep=main makes one"
    head, *table = [*zip(aligned(rows, str.rjust), commands, strict=True)]
    lines = [*map("  ".join, (head, *table))]
    # On a narrow terminal each command has a line of its own.
    if (width := terminal_width()) and max(map(len, lines)) > width:
        lines = [head[0], *map("\n  ".join, table)]
    if snapshot.closed:
        lines.append(snapshot.closed)
    if failed:  # each counts once, in however many sweeps it is
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
        # A view of a large store takes long to make, and may take SHARE of the time alone.
        time.sleep(max(POLL_EVERY, (time.monotonic() - started) / SHARE))
