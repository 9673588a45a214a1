"""A sweep is planned, or refused before it starts."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.plan import sweep_record
from pipegap.sweeps.plan.sweep_plan import Round, all_planned, plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.schema import known
from pipegap.trainer.store.bucket import BucketClient
from pipegap.trainer.store.opened import open_store
from pipegap.trainer.store.snapshot import Snapshot
from tests.support import buckets, small_sweep
from tests.support.processes import python
from tests.support.small_sweep import LENGTH, BucketSweep, check, disturb
from tests.support.trials import finished, leave_finished, leave_loss


def test_a_store_that_cannot_be_written_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep=main", "results=/proc/store"]) == 2
    assert "results=/proc/store: must be a folder that can be written" in capsys.readouterr().err


def test_everything_that_is_missing_is_named_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody fetches a GPU to learn that there is no data."""
    words = [f"results={tmp_path}", "sweep=main", "device=cuda", f"data.path={tmp_path / 'none'}"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "device=cuda: no such GPU" in error
    assert f"also data.path={tmp_path / 'none'}: holds no manifest.json" in error


@pytest.mark.parametrize(
    "scale",
    [
        pytest.param(name, marks=() if name == "few_updates" else pytest.mark.slow)
        for name in known("scale")
    ],
)
def test_every_sweep_can_be_planned_at_every_scale_anywhere(
    scale: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All at once: what they share is composed once. An arm has the name that a report gives it."""
    words = ["sweep=all", f"scale={scale}", f"results={tmp_path / 'store'}"]
    assert main([*words, "dry_run=true"]) == 0
    plan = capsys.readouterr().out
    assert ", 0 done" in plan
    rows = [line.split()[0] for line in plan.splitlines()]
    labels = [f"{name}-{scale}" for name in known("sweep")]
    assert rows[: len(labels) + 3] == ["trials", "sweep", *labels, "together"]
    assert not list(tmp_path.iterdir())


# What trials have finished is read once by a command, and again where a file has changed.

COUNTED = """
import json, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from pipegap.sweeps.__main__ import main
codes = [main(words) for words in json.loads(sys.argv[1])]
print(json.dumps([name for name in opened if name.endswith("result.json")]))
sys.exit(max(codes))
"""
GRID = "grid: {optimizer: [adamw, sgd]}\nseeds: [0, 1]\n"
SWEEPS = {
    "plain": GRID,
    "tuned": f"{GRID}tune: {{optimizer.lr: [1, 2]}}\nearly_stop: {{margin: 1}}\n",
}


def finish(words: list[str]) -> set[str]:
    """Finishes every trial of a sweep, round by round; returns their results."""
    request = parse_request(words)
    now = Round.first(request, open_store(request.where))
    while now.runnable:
        for trial in now.runnable:
            took = {"final_val_loss": 1 + trial.config["optimizer"]["lr"], "tokens_per_second": 9.0}
            leave_finished(trial.folder, trial.config, trial_id=trial.trial_id, **took)
        now = now.again()
    return {str(trial.folder / "result.json") for trial in now.planned}


def test_a_sweep_with_nothing_to_do_opens_each_result_once(
    tmp_path: Path, without_figures: None
) -> None:
    """In a process of its own, in which everything that is opened is counted."""
    results, commands = set[str](), []
    for name, content in SWEEPS.items():
        file = tmp_path / f"{name}.yaml"
        file.write_text(f"{content}arms: {{sync: [], delay: [pipeline=pipedream_2bw]}}\n")
        own = small_sweep.overrides(tmp_path, f"results={tmp_path / name}")
        words = [f"sweep={file}", "scale=micro", *own]
        results |= finish(words)
        assert main(words) == 0, "its report is made"
        commands.append(words)
    done = python("-c", COUNTED, json.dumps(commands))
    assert done.returncode == 0, done.stderr
    opened = Counter(json.loads(done.stdout.splitlines()[-1]))
    assert opened == dict.fromkeys(results, 1)


def test_a_snapshot_stays_and_the_next_one_opens_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[str]()

    def read(path: Path, whole: Callable[[Path], bytes] = Path.read_bytes) -> bytes:
        opened.append(path.parts[-2])
        return whole(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    folders = {name: tmp_path / name for name in "abc"}
    for name in "ab":
        leave_loss(folders[name], 1.0)
    seen = Snapshot()
    first = {name: seen.result(folder) for name, folder in folders.items()}
    assert [bool(result) for result in first.values()] == [True, True, False]
    leave_loss(folders["b"], 2.25)
    leave_loss(folders["c"], 3.0)
    assert {name: seen.result(folder) for name, folder in folders.items()} == first
    later = seen.again()
    results = [later.result(folder) for folder in folders.values()]
    assert [result and result["final_val_loss"] for result in results] == [1.0, 2.25, 3.0]
    much_later = later.again().again()
    assert much_later.result(folders["a"]) == first["a"]
    assert opened == ["a", "b", "b", "c"]


# A report is made again if, and only if, something that it is made of has changed.


@pytest.fixture
def words_of_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_figures: None
) -> list[str]:
    """The words of a sweep whose trials are all done, by version 1 of the code."""
    monkeypatch.setattr(sweep_record, "code_version", lambda: "1")
    file = tmp_path / "mine.yaml"
    file.write_text(
        "grid: {optimizer: [sgd]}\nseeds: [0]\n"
        "arms: {sync: [pipeline=sync], delay: [pipeline=pipedream_2bw]}\n"
    )
    words = [f"sweep={file}", *small_sweep.overrides(tmp_path)]
    for trial in all_planned(plan_sweeps(parse_request(words))):
        trial.folder.mkdir(parents=True)
        (trial.folder / "config.json").write_text(json.dumps(trial.config))
        result = finished(trial_id=trial.plan.trial_id)
        (trial.folder / "result.json").write_text(json.dumps(result))
    return words


def test_a_sweep_that_is_done_makes_its_report_once(
    words_of_done: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no verdict and asks no question; a second command prints what the first one did."""
    assert main(words_of_done) == 0
    first = capsys.readouterr().out
    assert "rule for the verdict" not in first
    lines = first.splitlines(keepends=True)
    page = tmp_path / "results/reports/mine-few_updates/index.html"
    made = page.stat().st_mtime_ns
    assert main(words_of_done) == 0
    unchanged = "nothing has changed since this report was made\n"
    assert capsys.readouterr().out.splitlines(keepends=True) == [*lines, unchanged]
    assert page.stat().st_mtime_ns == made

    def is_made_anew() -> bool:
        nonlocal made
        before, code = made, main(words_of_done)
        made = page.stat().st_mtime_ns
        return code == 0 and made != before

    result = next(tmp_path.glob("results/trials/*/result.json"))
    os.utime(result, ns=(1, 1))
    assert is_made_anew()
    assert not is_made_anew()
    for version, anew in (("2", True), ("2", False), ("abc-dirty", True), ("abc-dirty", True)):
        monkeypatch.setattr(sweep_record, "code_version", lambda version=version: version)
        assert is_made_anew() == anew, version
    (page.parent / sweep_record.MADE_OF).write_text("not JSON")
    assert is_made_anew()


def test_a_second_command_prints_for_the_terminal_at_hand(
    words_of_done: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a log, a wide and a narrow terminal get is kept for each."""
    told = dict[int | None, str]()
    for width in (None, 60, None, 60):
        for name in ("pipegap.analysis.table.text", "pipegap.analysis.report.report"):
            monkeypatch.setattr(f"{name}.terminal_width", lambda width=width: width)
        assert main(words_of_done) == 0
        text = capsys.readouterr().out.partition("mine-few_updates: ")[2]
        text = text.removesuffix("nothing has changed since this report was made\n")
        assert text == told.setdefault(width, text)
    in_a_log, narrow = told.values()
    longest = [max(map(len, text.splitlines()[:-2])) for text in (narrow, in_a_log)]  # no paths
    assert longest[0] <= 60 < longest[1]
    assert narrow.split() == in_a_log.split()


def test_the_locale_and_forced_colours_change_no_file_and_end_nothing(
    words_of_done: list[str], tmp_path: Path
) -> None:
    c_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "FORCE_COLOR": "1"}
    command = [sys.executable, "-m", "pipegap", "sweep", *words_of_done]
    done = subprocess.run(command, env=os.environ | c_locale, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
    report = tmp_path / "results/reports/mine-few_updates"
    assert not (report / "index.html").read_text("utf-8").isascii()
    assert b"\x1b" not in done.stdout + (report / "gaps.md").read_bytes()


# A sweep in a bucket, by its commands: the same tables as in a folder, to the last bit.

URL = f"s3://{buckets.BUCKET}/store"
TABLES = ("gaps.csv", "table1_2_losses.csv", "final_losses_main.csv", "validation_curves_main.csv")


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "pipegap", *words, env={**os.environ, "XDG_CACHE_HOME": str(folder)})


@pytest.mark.slow
@pytest.mark.usefixtures("moto_server")
def test_a_bucket_of_moto_is_a_store(tmp_path: Path) -> None:
    words = small_sweep.overrides(tmp_path, "sweep=main", "scale=micro", "seeds=[0,1]")
    words += ["grid.optimizer=[adamw]"]
    common = [word for word in words if not word.startswith("results=")]
    here, there = tmp_path / "here", tmp_path / "there"
    done = command(here, "sweep", *common, f"results={URL}")
    assert done.returncode == 0, done.stderr
    again = command(there, "sweep", *common, f"results={URL}")
    assert "0 to do" in again.stdout, "another machine sees that all is done"
    listed = command(there, "list", f"results={URL}", "format=csv")
    assert listed.stdout.count("completed") == 8, listed.stderr
    rerun = command(there, "rerun", f"results={URL}", "seed=1", "force=true")
    assert rerun.returncode == 0, rerun.stderr
    pruned = command(here, "prune", f"results={URL}", "checkpoints=all")
    assert "deleted 0 checkpoints" in pruned.stdout
    kept = {meta.key for meta in BucketClient(URL).list("reports")}
    assert "reports/main-micro/gaps.csv" in kept
    assert command(here, "sweep", *words).returncode == 0
    of_bucket, of_files = tmp_path / "of_bucket", tmp_path / "of_files"
    for results, out in ((URL, of_bucket), (tmp_path / "results", of_files)):
        done = command(there, "report", f"results={results}", f"out={out}")
        assert done.returncode == 0, done.stderr
    for table in TABLES:
        one, other = (sorted(out.rglob(table)) for out in (of_bucket, of_files))
        assert one, table
        assert [path.read_text() for path in one] == [path.read_text() for path in other], table


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.usefixtures("moto_server")
def test_a_sweep_in_a_bucket_of_moto_survives_its_driver(
    how: signal.Signals, tmp_path: Path
) -> None:
    """The next one takes the prefix over, and goes on from what was uploaded."""
    words = [word for word in small_sweep.overrides(tmp_path, *LENGTH) if "results=" not in word]
    bucket = f"s3://{buckets.BUCKET}"
    whole = BucketSweep(tmp_path / "whole", words, bucket=bucket)
    whole.finish()
    sweep = BucketSweep(tmp_path / "killed", words, bucket=bucket)
    is_killed, _ = disturb(sweep, "driver", how, whole.num_updates() // 2)
    assert is_killed
    sweep.finish()
    check(sweep, whole)
