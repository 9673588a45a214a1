"""`watch=true` makes the report again when the store changes, and ends cleanly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from analysis.report.live import state
from tests.support.synthetic_store import config, result, write, write_arms

ROOT = Path(__file__).parents[3]
DEADLINE = 120


def wait(done: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + DEADLINE
    while not done():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_page_follows_its_store_until_ctrl_c(tmp_path: Path) -> None:
    store, page = tmp_path / "results", tmp_path / "out" / "index.html"
    write_arms(store, {"sync": [1.0], "delay": [1.2]})
    command = [sys.executable, "-m", "analysis", f"results={store}", f"out={page.parent}"]
    process = subprocess.Popen(
        [*command, "watch=true"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait(page.exists, process)
        first = page.read_text()
        assert 'http-equiv="refresh"' in first
        assert "2 trials" in first
        settings = config("delay", seed=1)
        write(store, settings, result(settings, 1.3))
        wait(lambda: "3 trials" in page.read_text(), process)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
    assert (process.returncode, error) == (0, "")
    assert out.count("trials: ") == 2
    assert 'http-equiv="refresh"' not in page.read_text(), "it would load itself for ever"


def test_what_counts_as_a_change(tmp_path: Path) -> None:
    write_arms(tmp_path, {"sync": [1.0]})
    before = state(tmp_path)
    (tmp_path / "trials" / "0000" / "metrics.jsonl").write_text("")
    assert state(tmp_path) == before, "a running trial writes there all the time"
    path = tmp_path / "trials" / "0000" / "result.json"
    os.utime(path, ns=(1, 1))
    assert state(tmp_path) != before
    before = state(tmp_path)
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "main-tiny.json").write_text("{}")
    assert state(tmp_path) != before
    assert state(tmp_path / "none") == {}
