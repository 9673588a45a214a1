"""What tests of whole trials share: records without the clock, and ways to stop a trial."""

import json
import time
from pathlib import Path
from typing import Any

from trainer.folder.record import Row

ASYNC = ("pipeline=pipedream_2bw", "correction=error_feedback", "save_final=true")
TIMING = {"tokens_per_second", "wall_seconds", "finished_at"}
MACHINE = {
    "git",
    "attempts",
    "peak_memory_bytes",
    "peak_memory_bytes_by_rank",
    "bubble",
    "bubble_by_rank",
    "update_wait_by_rank",
}


def rows(folder: Path) -> list[Row]:
    """metrics.jsonl without what time and machine decide."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMING} for line in lines]


def untimed(result: Row) -> Row:
    return {k: v for k, v in result.items() if k not in TIMING | MACHINE}


class Stop(KeyboardInterrupt):
    pass


def stop_at(update: int) -> Any:
    def report(row: Row) -> None:
        if row["update"] == update:
            raise Stop

    return report


def wait_for(condition: Any, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
