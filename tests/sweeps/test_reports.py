"""A report is made again if, and only if, something that it is made of has changed."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.plan import sweep_record
from pipegap.sweeps.plan.sweep_plan import all_planned, plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from tests.support import small
from tests.support.records import finished

RECORD: dict[str, Any] = {"seeds": [0], "words": ["a=1"], "trials": {"t": {"seconds": 1.0}}}


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    """The folder of a finished trial."""
    folder = tmp_path / "t"
    folder.mkdir()
    (folder / "result.json").write_text("{}")
    return folder


def test_the_state_is_that_of_record_results_and_code(trial: Path) -> None:
    before = sweep_record.state(RECORD, [trial], "1")
    costlier = {**RECORD, "words": ["b=2"], "trials": {"t": {"seconds": 9.0}}}
    assert sweep_record.state(costlier, [trial], "1") == before
    assert sweep_record.state({**RECORD, "seeds": [1]}, [trial], "1") != before
    assert sweep_record.state({**RECORD, "trials": {}}, [trial], "1") != before
    assert sweep_record.state(RECORD, [], "1") != before
    assert sweep_record.state(RECORD, [trial], "2") != before
    os.utime(trial / "result.json", ns=(1, 1))
    assert sweep_record.state(RECORD, [trial], "1") != before


@pytest.mark.parametrize("version", [None, "abc-dirty"])
def test_code_that_nobody_can_name_is_always_another_one(trial: Path, version: str | None) -> None:
    assert sweep_record.state(RECORD, [trial], version) != sweep_record.state(
        RECORD, [trial], version
    )


def test_what_was_printed_is_kept_with_the_page(tmp_path: Path) -> None:
    sweep_record.note(tmp_path, "now", "text")
    assert sweep_record.printed(tmp_path, "now") is None  # there is no page
    (tmp_path / sweep_record.PAGE).touch()
    assert sweep_record.printed(tmp_path, "now") == "text"
    assert sweep_record.printed(tmp_path, "later") is None
    (tmp_path / sweep_record.MADE_OF).write_text("not JSON")
    assert sweep_record.printed(tmp_path, "now") is None


def test_a_sweep_that_is_done_makes_its_report_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no verdict and asks no question; a second command prints what the first one did."""
    monkeypatch.setattr(sweep_record, "code_version", lambda: "1")
    file = tmp_path / "mine.yaml"
    file.write_text(
        "grid: {optimizer: [sgd]}\nseeds: [0]\n"
        "arms: {sync: [pipeline=sync], delay: [pipeline=pipedream_2bw]}\n"
    )
    words = [f"sweep={file}", *small.overrides(tmp_path)]
    for trial in all_planned(plan_sweeps(parse_request(words))):
        trial.folder.mkdir(parents=True)
        (trial.folder / "config.json").write_text(json.dumps(trial.config))
        result = finished(trial_id=trial.plan.trial_id)
        (trial.folder / "result.json").write_text(json.dumps(result))
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
