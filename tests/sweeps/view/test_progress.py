"""How far a sweep is: the same states from the store as from Tune, and a view that never fails."""

import io
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from pipegap.analysis.report.report import report
from pipegap.analysis.statistics.gaps import gaps
from pipegap.analysis.statistics.text import gap_table
from pipegap.analysis.table.load import load
from pipegap.sweeps.__main__ import main
from pipegap.sweeps.cluster.notices import Ends
from pipegap.sweeps.plan import devices
from pipegap.sweeps.plan.devices import ASSUMED_START, core, counted_seconds
from pipegap.sweeps.plan.sweep_plan import all_planned, plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import Expected, Trial
from pipegap.sweeps.view import display
from pipegap.sweeps.view.display import Display
from pipegap.sweeps.view.progress import COLD, Progress, State, Warm, read_state
from pipegap.sweeps.view.render import SHARE, GapTable, Throttled, render
from pipegap.trainer.base.errors import Status
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.folder.lease import leased
from pipegap.trainer.folder.wellformed import last_row
from pipegap.trainer.store.files import FileStore
from pipegap.trainer.store.snapshot import Snapshot
from tests.support import small_sweep
from tests.support.small_sweep import ZEN_4
from tests.support.synthetic_store import add, config, ids, record, result, write_arms

ROW = {"update": 4, "tokens_per_second": 100.0, "wall_seconds": 10.0}


def seen_state(folder: Path) -> State:
    return read_state(folder, Snapshot())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    small_sweep.corpus(folder)
    return folder


def trials(corpus: Path, results: Path, num_trials: int) -> list[Trial]:
    configs = [
        small_sweep.config(corpus, f"results={results}", f"seed={s}") for s in range(num_trials)
    ]
    return [Trial("sync", config, plan_trial(config)) for config in configs]


def metrics(folder: Path, *rows: dict[str, Any], end: str = "\n") -> None:
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + end)


def test_what_a_folder_says(tmp_path: Path) -> None:
    folder = tmp_path / "trial"
    assert seen_state(folder) == State(Status.WAITING)
    folder.mkdir()
    with leased(folder, lambda: "failed"):
        assert seen_state(folder).status == "running"
        assert "pid" in seen_state(folder).where
        metrics(folder, {**ROW, "update": 3}, ROW)
        assert (seen_state(folder).num_done, seen_state(folder).tokens_per_second) == (5, 100.0)
    assert (seen_state(folder).status, seen_state(folder).where) == ("interrupted", "")
    (folder / "result.json").write_text('{"status": "failed"}')
    assert seen_state(folder).status == "failed"
    with leased(folder, lambda: "completed"):
        assert seen_state(folder).status == "running"  # once more
    (folder / "result.json").write_text(json.dumps(result(config(), 1.0, trial_id="a")))
    assert seen_state(folder) == State(Status.COMPLETED, 400, wall_seconds=40.0)


def test_the_last_whole_row_of_a_long_file(tmp_path: Path) -> None:
    assert last_row(tmp_path) is None
    metrics(tmp_path, ROW, end="")
    assert last_row(tmp_path) is None
    long = {"update": 0, "filler": "x" * 70_000}
    metrics(tmp_path, long, long, {"update": 2}, end='\n{"update": 3')
    assert last_row(tmp_path) == {"update": 2}
    metrics(tmp_path, long)
    assert last_row(tmp_path) is None  # it is longer than what is read


def test_pace_and_time_left_are_those_of_what_runs(corpus: Path, tmp_path: Path) -> None:
    """Four equal trials of 12 updates: one ended, two run at 0.5 and 0.25 updates/s, one waits."""
    progress = Progress(trials(corpus, tmp_path, 4))
    ended, fast, slow, _ = progress.states.values()
    assert progress.seconds_left is None
    ended.status, ended.num_done = Status.COMPLETED, 12
    for state, num_done, seconds in ((fast, 4, 8.0), (slow, 2, 8.0)):
        state.status = Status.RUNNING
        row = {"update": num_done - 1, "tokens_per_second": 7.0, "wall_seconds": seconds}
        state.update(row, COLD)
    assert progress.tokens_per_second == 14.0
    assert progress.share == pytest.approx((12 + 4 + 2) / 48)
    assert progress.seconds_left == pytest.approx((8 + 10 + 12) / 0.75)  # and the slow one: 40 s
    slow.wall_seconds = 80.0
    assert progress.seconds_left == pytest.approx(10 / 0.025)  # nobody can help it


def test_before_a_pace_is_known_a_trial_takes_what_the_plan_says(
    corpus: Path, tmp_path: Path
) -> None:
    """Four trials of 12 updates, priced 10, 20, 30 and 40 s; two run. Later one of them is twice as
    slow as its price, whatever its FLOPs are."""
    planned = trials(corpus, tmp_path, 4)
    seconds = {trial.trial_id: 10.0 * i for i, trial in enumerate(planned, start=1)}
    progress = Progress(planned, expected=Expected(seconds, compiler=7.0))
    first, second, *_ = progress.states.values()
    assert progress.seconds_left is None
    first.status = second.status = Status.RUNNING
    assert progress.seconds_left == pytest.approx(100 / 2 + 7)
    second.num_done, second.wall_seconds = 6, 20.0  # half of 20 s, and it waited for the compiler
    assert progress.share == pytest.approx(0.1)
    assert progress.seconds_left == pytest.approx(90 / 2 + 7)
    progress = Progress(planned, earlier=progress, expected=Expected(seconds, compiler=0.0))
    assert progress.seconds_left == pytest.approx(90 / 2 / 0.5)
    third, fourth = [*progress.states.values()][2:]
    first.status = second.status = Status.COMPLETED
    third.status = fourth.status = Status.RUNNING
    progress = Progress(planned, earlier=progress, expected=Expected(seconds, compiler=7.0))
    first.num_done, first.wall_seconds, second.num_done, second.wall_seconds = 12, 20.0, 12, 40.0
    assert progress.seconds_left == pytest.approx(70 / 2 / 0.5)


def test_time_left_from_the_store_does_not_count_the_first_updates(
    corpus: Path, tmp_path: Path
) -> None:
    """A trial of 12 updates made the first two in 90 s, four more in 8 s, and six are left."""
    [trial] = trials(corpus, tmp_path, 1)
    progress = Progress([trial])
    trial.folder.mkdir(parents=True)
    with leased(trial.folder, lambda: "completed"):
        seconds = [60.0, 90.0, 92.0, 94.0, 96.0, 98.0]
        for num_done, left in ((1, None), (2, None), (3, 18.0), (6, 12.0)):
            rows = enumerate(seconds[:num_done])
            metrics(trial.folder, *({"update": i, "wall_seconds": at} for i, at in rows))
            progress.refresh(progress.trials, Snapshot())
            assert progress.seconds_left == (left and pytest.approx(left))


def test_seldom_takes_a_small_share_of_the_time() -> None:
    now, worked = 0.0, 0.0

    def work() -> None:
        nonlocal now, worked
        now += 0.3
        worked += 0.3

    throttled = Throttled(work, 1.0, lambda: now)
    while now < 1000:
        throttled()
        now += 0.1
    assert 0.9 * SHARE < worked / now <= SHARE


class Screen:
    """A display with its console, told what Tune tells."""

    def __init__(
        self,
        planned: list[Trial],
        todo: list[Trial],
        results: Path,
        terminal: bool,
        width: int = 100,
        expected: Expected | None = None,
    ) -> None:
        self.file = io.StringIO()
        console = Console(file=self.file, force_terminal=terminal, width=width)
        store = FileStore(results)
        self.display = Display(
            "name", planned, todo, store, lambda: False, Ends(), console, expected
        )

    @property
    def text(self) -> str:
        """Without colours."""
        return re.sub("\x1b\\[[0-9;]*m", "", self.file.getvalue())

    def start(self, trial: Trial) -> None:
        self.display.on_trial_start(0, [], self._of_tune(trial))

    def row(self, trial: Trial, **row: object) -> None:
        told = {"warm": COLD, **row, "hostname": "h", "pid": 7}
        self.display.on_trial_result(0, [], self._of_tune(trial), told)
        self.display.on_step_end(0, [])

    def fail(self, trial: Trial, error: Exception | None) -> None:
        of_tune = self._of_tune(trial)
        of_tune.get_pickled_error = lambda: error
        self.display.on_trial_error(0, [], of_tune)

    def _of_tune(self, trial: Trial) -> SimpleNamespace:
        point = {"id": trial.plan.trial_id, "arm": trial.arm, "config": trial.config}
        return SimpleNamespace(config={"trial": point})


def test_lines_where_there_is_no_terminal(corpus: Path, tmp_path: Path) -> None:
    one, two = planned = trials(corpus, tmp_path, 2)
    screen = Screen(planned, planned, tmp_path, terminal=False)
    with screen.display:
        screen.start(one)
        screen.start(two)
        assert screen.display.running == {trial.plan.trial_id for trial in planned}
        screen.row(one, **ROW, status=Status.RUNNING)
        # At 0.5 updates/s, as both.
        screen.row(one, num_done=12, wall_seconds=24.0, status=Status.COMPLETED)
        assert screen.display.running == {two.plan.trial_id}
        screen.row(two, num_done=3, status=Status.ELSEWHERE)  # another driver was faster
        assert not screen.display.running
    assert screen.file.getvalue().splitlines() == [
        f"1/2 completed {one.plan.trial_id} adamw sync seed 0, about 12 s left"
    ]


def test_a_long_silence_is_broken_by_what_the_sweep_waits_for(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that trials are slow is said once."""
    monkeypatch.setattr(display, "Throttled", lambda work, every: work)
    one, two = planned = trials(corpus, tmp_path, 2)
    expected = Expected({trial.trial_id: 24.0 for trial in planned}, compiler=0.0)
    screen = Screen(planned, planned, tmp_path, terminal=False, expected=expected)
    with screen.display:
        screen.display.on_step_end(0, [])
        assert not screen.text
        monkeypatch.setattr(display, "SILENT", 0.0)
        screen.display.on_step_end(0, [])
        screen.start(one)
        screen.start(two)
        screen.row(one, update=0, wall_seconds=9.0, status=Status.RUNNING)
        monkeypatch.setattr(display, "SILENT", 600.0)
        for seconds in (50.0, 72.0, 73.0):  # 6 s of the plan, beside the 9 s of the other
            screen.row(two, update=2, wall_seconds=seconds, status=Status.RUNNING)
            assert ("trials take" in screen.text) == (seconds > 60)
    silent, waits, slow = screen.text.splitlines()
    none = "none runs, 2 wait until Ray has the cores or GPUs of one free"
    assert silent == f"no trial has ended for 0 s: {none}"
    furthest = f"2 run, the furthest, {one.name}, is at update 1 of 12"
    assert waits == f"no trial has ended for 0 s: {furthest}"
    assert slow.startswith("trials take ")
    assert "RAY_worker_niceness=0" in slow


def test_short_trials_that_have_ended_say_that_a_sweep_is_slow(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes 30 s in place of 5, and none runs for a minute. The first two updates compile."""
    monkeypatch.setattr(display, "Throttled", lambda work, every: work)
    planned = trials(corpus, tmp_path, 4)
    expected = Expected({trial.trial_id: 6.0 for trial in planned}, compiler=0.0)
    screen = Screen(planned, planned, tmp_path, terminal=False, expected=expected)
    warm = Warm(2, 90.0)
    with screen.display:
        for number, trial in enumerate(planned, start=1):
            screen.start(trial)
            ended = {"num_done": 12, "wall_seconds": 120.0, "warm": warm}
            screen.row(trial, **ended, status=Status.COMPLETED)
            assert ("trials take 6 times as long as planned" in screen.text) == (number > 1)
    assert screen.text.count("times as long as planned") == 1


def test_a_log_says_why_a_trial_failed_and_breaks_no_line(corpus: Path, tmp_path: Path) -> None:
    raised, refused, died, unknown = planned = trials(corpus, tmp_path, 4)
    screen = Screen(planned, planned, tmp_path, terminal=False, width=30)
    trace = (
        'ray::train() (pid=7)\n  File "a.py", line 1, in step\n    x()\n[0] is no matrix:\nrow 3'
    )
    with screen.display:
        for trial in planned:
            screen.start(trial)
        screen.fail(raised, RuntimeError(trace))
        screen.row(refused, num_done=0, status=Status.FAILED, error="optimizer.lr=-1: no [rate]")
        screen.fail(died, RuntimeError("The actor died unexpectedly.\n\tclass_name: X"))
        screen.fail(unknown, None)
    whys = ["[0] is no matrix:", "optimizer.lr=-1: no [rate]", "The actor died unexpectedly."]
    assert screen.file.getvalue().splitlines() == [
        f"{number}/4 failed {trial.trial_id} adamw sync seed {number - 1}: {why}"
        for number, (trial, why) in enumerate(
            zip(planned, [*whys, "no reason is recorded"], strict=True), start=1
        )
    ]


def test_the_view_on_a_terminal_counts_what_runs_here_and_elsewhere(
    corpus: Path, tmp_path: Path
) -> None:
    mine, theirs, failed, waiting = planned = trials(corpus, tmp_path, 4)
    words = ("1 failed", "1 running", "1 elsewhere", "1 waiting", "5 of 12", "100 tokens/s")
    with ExitStack() as held:
        theirs.folder.mkdir(parents=True)
        held.enter_context(leased(theirs.folder, lambda: "completed"))
        screen = Screen(planned, [mine, failed, waiting], tmp_path, terminal=True)
        with screen.display:
            screen.start(mine)
            screen.start(failed)
            screen.row(failed, num_done=3, status=Status.FAILED)
            deadline = time.monotonic() + 120  # a slow frame puts the next one off
            while time.monotonic() < deadline and not all(word in screen.text for word in words):
                screen.row(mine, **ROW, status=Status.RUNNING)  # not every one is drawn
                time.sleep(0.01)
    text = screen.text
    for word in words:
        assert word in text
    assert "1 of 4 trials ended" in text


@pytest.mark.parametrize("width", [60, 80, 200])
def test_nothing_of_a_view_is_cut(corpus: Path, tmp_path: Path, width: int) -> None:
    """Columns that do not fit go, the last ones first."""
    planned = trials(corpus, tmp_path, 2)
    progress = Progress(planned)
    for state in progress.states.values():
        state.status, state.num_done, state.where = Status.RUNNING, 5, "h" * 30 + " pid 7"
        state.tokens_per_second = 12345.0
    console = Console(file=io.StringIO(), width=width)
    console.print(render("a-long-name-of-a-sweep-few_updates", progress))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    assert "a-long-name-of-a-sweep-few_updates: 0 of 2 trials ended\n" in text
    for trial in planned:
        [line] = [line for line in text.splitlines() if line.startswith(trial.trial_id)]
        seen = ["sync", "adamw", str(trial.config["seed"]), "5", "of", "12", "12,345"]
        assert line.split()[1:9] == [*seen, *(["h" * 30] if width == 200 else [])]


def test_gaps_on_a_narrow_terminal_have_a_row_each(tmp_path: Path) -> None:
    """No cell is broken, and none stands without what it is; empty columns are left out."""
    write_arms(tmp_path, {"sync": [1.5, 1.6], "delay": [1.75, 1.9]})
    table = gaps(load(tmp_path))
    narrow = gap_table(table, width=48).splitlines()
    assert narrow == [
        "AdamW, delay, sync loss 1.5500, loss 1.8250,",
        "  gap [95 %] +0.2750 [-0.0427, +0.5927], n 2",
    ]
    losses_left_out = gap_table(table, width=60)
    assert "+0.2750 [-0.0427, +0.5927]   2\n" in losses_left_out
    assert losses_left_out.endswith("\n  not shown: sync loss, loss")
    head, _, row = filter(None, gap_table(table, width=80).splitlines())
    assert "diverged" not in head
    assert " +0.2750 [-0.0427, +0.5927] " in row


def test_a_gap_table_that_cannot_be_made_ends_nothing(tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.5], "delay": [1.75]})
    progress = Progress([])
    ids = ["0000", "0001"]
    progress.trials = dict.fromkeys(ids)  # type: ignore[arg-type]  # their names are enough
    progress.states = {name: State(Status.COMPLETED) for name in ids}
    so_far = GapTable(tmp_path)
    so_far.refresh(progress, 100)
    assert "+0.2500" in so_far.text
    add(tmp_path, "delay", 1.0, seed=1, data_hash="other")
    progress.trials["0002"] = None  # type: ignore[assignment]
    progress.states["0002"] = State(Status.COMPLETED)
    so_far.refresh(progress, 100)
    assert so_far.text.startswith("no gaps now: data_hash")
    shown = Console(file=io.StringIO(), width=100)
    shown.print(render("name", Progress([]), gaps=so_far.text))


# `pipegap status` without words: every sweep of the store in a line.


def test_each_recorded_sweep_has_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_arms(tmp_path, {"sync": [1.7, 1.8], "delay": [1.9, None]})
    record(tmp_path, "main", "tiny", [*ids(tmp_path), "never"])
    (tmp_path / "trials" / ids(tmp_path)[0] / "result.json").unlink()
    record(tmp_path, "clip", "micro", [])
    assert main(["status", f"results={tmp_path}"]) == 0
    heads, clip, tiny = (line.split() for line in capsys.readouterr().out.splitlines())
    assert heads == ["sweep", "trials", "completed", "diverged", "failed", "left", "more"]
    assert clip[:6] == ["clip-micro", "0", "0", "0", "0", "0"]
    assert (tiny[:2], tiny[5]) == (["main-tiny", "5"], "2")
    assert sum(map(int, tiny[2:5])) == 3
    assert " ".join(tiny[6:]) == f"pipegap status sweep=main scale=tiny results={tmp_path}"


def test_a_narrow_terminal_has_the_command_below_its_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_arms(tmp_path, {"sync": [1.7, 1.8]})
    record(tmp_path, "main", "tiny", ids(tmp_path))
    monkeypatch.setattr("pipegap.sweeps.commands.status.terminal_width", lambda: 60)
    assert main(["status", f"results={tmp_path}"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "sweep      trials  completed  diverged  failed  left",
        "main-tiny       2          2         0       0     0",
        f"  pipegap status sweep=main scale=tiny results={tmp_path}",
    ]


def test_failed_trials_are_told_with_their_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the overview and in a report, whose next step is not to run them again."""
    write_arms(tmp_path, {"sync": [1.7, 1.8]})
    for trial_id in ids(tmp_path):
        path = tmp_path / "trials" / trial_id / "result.json"
        error = 'Traceback:\n  File "a.py", line 1\n    x\nValueError: no matrix\nrow 3\n'
        path.write_text(
            json.dumps({**json.loads(path.read_text()), "status": "failed", "error": error})
        )
    record(tmp_path, "main", "tiny", ids(tmp_path))
    told, see = (
        "2 of 2 failed: ValueError: no matrix (",
        f"pipegap list status=failed results={tmp_path}",
    )
    assert main(["status", f"results={tmp_path}"]) == 0
    *_, failed, how = capsys.readouterr().out.splitlines()
    assert failed.startswith(told)
    assert how == f"all that failed: {see}"
    assert main(["list", f"results={tmp_path}", "status=failed"]) == 0
    assert capsys.readouterr().out.count("ValueError: no matrix\n") == 2
    printed = report(tmp_path, tmp_path / "report", store=str(tmp_path))
    assert f"main-tiny: {told}" in printed
    assert f"nothing is decided yet: {see}" in printed
    page = (tmp_path / "report" / "index.html").read_text().split("<header id=")[1]
    assert told in page.split("<h1>")[0], "before everything"


SWEEP = ("sweep=main", "scale=micro", "format=json")


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert main([*words]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_plan_for_programs_has_every_trial_with_its_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = shown(capsys, *SWEEP, f"results={tmp_path}", "dry_run=true")
    assert plan["sweeps"][0]["trials"] == len(plan["trials"])
    assert all(trial["todo"] and trial["seconds"] > 0 for trial in plan["trials"])
    [cost] = plan["costs"]
    assert cost["seconds"] == pytest.approx(
        sum(t["seconds"] for t in plan["trials"]), rel=0.02, abs=1
    )
    assert not (tmp_path / "trials").exists()


def test_json_is_refused_where_a_sweep_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SWEEP, f"results={tmp_path}"]) == 2
    assert "format=json: needs dry_run=true" in capsys.readouterr().err


def test_the_state_of_each_trial_and_what_is_next_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trial that is held but has written no row for an hour has stalled."""
    where = f"results={tmp_path}"
    plan = shown(capsys, *SWEEP, where, "dry_run=true")
    names = [trial["trial"] for trial in plan["trials"]]
    finished, failed, training, stalled, interrupted, *_ = names
    folders = {name: tmp_path / "trials" / name for name in names}
    row = json.dumps({"update": 4, "tokens_per_second": 100.0, "wall_seconds": 10.0}) + "\n"
    with ExitStack() as held:
        for name in (training, stalled, interrupted):
            folders[name].mkdir(parents=True)
            lease = leased(folders[name], lambda: "failed")
            if name == interrupted:
                with lease:
                    pass
            else:
                held.enter_context(lease)
            (folders[name] / "metrics.jsonl").write_text(row)
        an_hour_ago = time.time() - 3600
        os.utime(folders[stalled] / "metrics.jsonl", (an_hour_ago, an_hour_ago))
        for name, outcome in (
            (finished, result(config(), 1.5, trial_id=finished)),
            (failed, {"status": "failed", "error": "ValueError: no matrix"}),
        ):
            folders[name].mkdir(parents=True)
            (folders[name] / "result.json").write_text(json.dumps(outcome))
        view = shown(capsys, "status", *SWEEP, where)
        by_id = {trial["trial"]: trial for trial in view["trials"]}
        states = {name: by_id[name]["state"] for name in names[:5]}
        assert states == {
            finished: "finished",
            failed: "failed",
            training: "training",
            stalled: "stalled",
            interrupted: "interrupted",
        }
        assert {trial["state"] for trial in view["trials"][5:]} <= {"waiting"}
        assert by_id[finished]["result"]["final_val_loss"] == 1.5
        assert by_id[failed]["error"] == "ValueError: no matrix"
        assert by_id[training]["update"] == 5
        left = 2 * (by_id[training]["num_updates"] - 5)  # two seconds per update
        assert by_id[training]["seconds_left"] == left
        assert by_id[stalled]["row_age_seconds"] == pytest.approx(3600, abs=60)
        assert view["next"]["do"] == "wait"
        assert 10 <= view["next"]["look_again_seconds"] <= 600
    view = shown(capsys, "status", *SWEEP, where)
    assert view["next"]["do"] == "run what is left"
    assert view["next"]["command"] == f"pipegap sweep sweep=main scale=micro {where}"


def test_the_recorded_sweeps_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_arms(tmp_path, {"sync": [1.7, 1.8], "delay": [1.9, None]})
    record(tmp_path, "main", "tiny", [*ids(tmp_path), "never"])
    [sweep] = shown(capsys, "status", f"results={tmp_path}", "format=json")
    assert [sweep[key] for key in ("trials", "completed", "diverged", "failed", "left")] == [
        *(5, 3, 1, 0, 1)
    ]
    assert sweep["command"].endswith(f"results={tmp_path} format=json")


# The time left of recorded jobs: what a log would have said, and what was true.

MAIN = Path(__file__).parents[3] / "findings/main"
KEY = ["optimizer", "arm", "seed", "num_updates"]
JOBS: Mapping[str, Sequence[str]] = {
    "job": (),
    "job_0.2": (),  # of a Zen 5, eight seeds
    "trials_tiny": ("num_updates=1600", "compile=false", "eval_tokens=null", "advice=null"),
}
"""Table of a job of two processes → words beside those of its sweep."""


def state(start: float, end: float, num_updates: int, now: float) -> State:
    """What a driver knew of a trial, whose updates took equally long."""
    if now < start:
        return State()
    share = min(1.0, (now - start) / (end - start))
    status = Status.RUNNING if share < 1 else Status.COMPLETED
    return State(status, int(share * num_updates), wall_seconds=share * (end - start))


@pytest.mark.parametrize("name", JOBS)
def test_the_time_left_is_within_a_quarter(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "device_of", lambda config: core(ZEN_4, config["compile"]))
    monkeypatch.setattr(devices, "_counted", cache(devices._counted.__wrapped__))
    job = pd.read_csv(MAIN / f"{name}.csv")
    ends = pd.to_datetime(job.finished_at, format="mixed", utc=True).map(pd.Timestamp.timestamp)
    starts = ends - job.wall_seconds
    times = dict(
        zip(
            zip(*(job[key] for key in KEY), strict=True),
            zip(starts, ends, strict=True),
            strict=True,
        )
    )
    seeds = f"seeds={sorted({*job.seed})}"
    request = parse_request(["sweep=main", "scale=tiny", *JOBS[name], seeds, f"results={tmp_path}"])
    trials = {
        (t.config["choices"]["optimizer"], t.arm, t.config["seed"], t.plan.num_updates): t
        for t in all_planned(plan_sweeps(request))
    }
    assert trials.keys() == times.keys()
    seconds = {
        t.trial_id: ASSUMED_START + counted_seconds(t.config, t.plan) for t in trials.values()
    }
    progress = Progress([*trials.values()], expected=Expected(seconds, compiler=0.0))
    for share in (0.2, 0.5, 0.8):
        now = starts.min() + share * (ends.max() - starts.min())
        for key, trial in trials.items():
            progress.states[trial.trial_id] = state(*times[key], trial.plan.num_updates, now)
        left = progress.seconds_left
        assert left is not None
        assert 0.75 < left / (ends.max() - now) < 1.25
