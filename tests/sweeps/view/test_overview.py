"""`pipegap status` without words: every sweep of the store in a line."""

from pathlib import Path

import pytest

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


def test_a_store_without_sweeps_says_what_makes_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", f"results={tmp_path}"]) == 0
    assert capsys.readouterr().out.endswith("pipegap sweep sweep=main makes one\n")
