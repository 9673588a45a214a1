"""A report is made again if, and only if, something that it is made of has changed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.plan import sweep_record
from pipegap.sweeps.plan.sweep_plan import all_planned, plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from tests.support import small
from tests.support.records import finished


def _done(folder: Path) -> list[str]:
    """The words of a sweep whose trials are all done."""
    file = folder / "mine.yaml"
    file.write_text(
        "grid: {optimizer: [sgd]}\nseeds: [0]\n"
        "arms: {sync: [pipeline=sync], delay: [pipeline=pipedream_2bw]}\n"
    )
    words = [f"sweep={file}", *small.overrides(folder)]
    for trial in all_planned(plan_sweeps(parse_request(words))):
        trial.folder.mkdir(parents=True)
        (trial.folder / "config.json").write_text(json.dumps(trial.config))
        result = finished(trial_id=trial.plan.trial_id)
        (trial.folder / "result.json").write_text(json.dumps(result))
    return words


def test_a_sweep_that_is_done_makes_its_report_once(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    without_figures: None,
) -> None:
    """It has no verdict and asks no question; a second command prints what the first one did."""
    monkeypatch.setattr(sweep_record, "code_version", lambda: "1")
    words = _done(tmp_path)
    assert main(words) == 0
    first = capsys.readouterr().out
    assert "rule for the verdict" not in first
    lines = first.splitlines(keepends=True)
    page = tmp_path / "results/reports/mine-few_updates/index.html"
    made = page.stat().st_mtime_ns
    assert main(words) == 0
    unchanged = "nothing has changed since this report was made\n"
    assert capsys.readouterr().out.splitlines(keepends=True) == [*lines, unchanged]
    assert page.stat().st_mtime_ns == made

    def is_made_anew() -> bool:
        nonlocal made
        before, code = made, main(words)
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
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    without_figures: None,
) -> None:
    """What a log, a wide and a narrow terminal get is kept for each."""
    monkeypatch.setattr(sweep_record, "code_version", lambda: "1")
    words, told = _done(tmp_path), dict[int | None, str]()
    for width in (None, 60, None, 60):
        for name in ("pipegap.analysis.table.text", "pipegap.analysis.report.report"):
            monkeypatch.setattr(f"{name}.terminal_width", lambda width=width: width)
        assert main(words) == 0
        text = capsys.readouterr().out.partition("mine-few_updates: ")[2]
        text = text.removesuffix("nothing has changed since this report was made\n")
        assert text == told.setdefault(width, text)
    in_a_log, narrow = told.values()
    longest = [max(map(len, text.splitlines()[:-2])) for text in (narrow, in_a_log)]  # no paths
    assert longest[0] <= 60 < longest[1]
    assert narrow.split() == in_a_log.split()


def test_the_locale_and_forced_colours_change_no_file_and_end_nothing(tmp_path: Path) -> None:
    c_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "FORCE_COLOR": "1"}
    command = [sys.executable, "-m", "pipegap", "sweep", *_done(tmp_path)]
    done = subprocess.run(command, env=os.environ | c_locale, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
    report = tmp_path / "results/reports/mine-few_updates"
    assert not (report / "index.html").read_text("utf-8").isascii()
    assert b"\x1b" not in done.stdout + (report / "gaps.md").read_bytes()
