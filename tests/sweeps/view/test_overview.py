"""`pipegap status` without words: every sweep of the store in a line."""

import json
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pipegap.analysis.report.report import report
from pipegap.sweeps.__main__ import main
from pipegap.trainer.folder.lease import leased
from tests.support.synthetic_store import config, ids, record, result, write_arms


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
