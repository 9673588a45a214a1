"""`pipegap status` without words: every sweep of the store in a line."""

import json
from pathlib import Path

import pytest

from pipegap.analysis.report.report import report
from pipegap.sweeps.__main__ import main
from tests.support.synthetic_store import ids, record, write_arms


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
    answer = (tmp_path / "report" / "index.html").read_text().split('id="answer"')[1]
    assert told in answer.split("</section>")[0]
