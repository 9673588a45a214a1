"""What a killed driver left in the store goes at the next start; what is written now stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

from sweeps.plan import sweep_record
from sweeps.plan.sweep_plan import plan_sweeps
from sweeps.request.command_line import parse_request
from sweeps.store.opened import FileStore
from sweeps.store.results import require_writable
from tests.support import small
from trainer.folder.lease import STALE_AFTER


def left(folder: Path, name: str, age: float) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.touch()
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_partial_records_of_killed_drivers_are_deleted(tmp_path: Path) -> None:
    records = tmp_path / "results" / "sweeps"
    old = left(records, ".main-micro.json.123.partial", 2 * STALE_AFTER)
    written_now = left(records, ".main-micro.json.456.partial", 0)
    record = left(records, "old.json", 2 * STALE_AFTER)
    words = small.overrides(tmp_path, "sweep=main", "scale=micro", "seeds=[0]")
    asked = parse_request(words)
    sweep_record.write(asked, plan_sweeps(asked), FileStore(asked.results))
    assert not old.exists()
    assert written_now.exists()
    assert record.exists()


def test_probes_of_killed_drivers_are_deleted(tmp_path: Path) -> None:
    old = left(tmp_path / "trials", ".probe-1", 2 * STALE_AFTER)
    written_now = left(tmp_path / "trials", ".probe-2", 0)
    require_writable(tmp_path)
    assert not old.exists()
    assert written_now.exists()
