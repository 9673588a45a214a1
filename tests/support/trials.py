"""What tests of whole trials share: records without the clock, and ways to stop a trial."""

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipegap.trainer.__main__ import main
from pipegap.trainer.folder.result import Row
from pipegap.trainer.trial import run_trial
from tests.support import small

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


def ran(folder: Path, name: str, *words: str) -> tuple[Row, list[Row]]:
    """Result and rows of the trial of these words, in the folder `name`."""
    result = run_trial(small.config(folder, *words, f"out={folder / name}"))
    return untimed(result), rows(folder / name)


class Stop(KeyboardInterrupt):
    pass


def stop_at(update: int) -> Any:
    def report(row: Row) -> None:
        if row["update"] == update:
            raise Stop

    return report


def checkpoint_after_5(config: dict[str, Any]) -> Path:
    """The checkpoint of a trial that was stopped after update 6, in the folder `out`."""
    with pytest.raises(Stop):
        run_trial(config, stop_at(6))
    [path] = Path(config["out"]).glob("checkpoint-000000005-*.pt")
    return path


def assert_same_end(folder: Path, name: str, other: str) -> None:
    """The same updates after that checkpoint, and the same final weights."""
    assert rows(folder / name)[-7:] == rows(folder / other)[-7:]
    ours, theirs = (load_file(folder / trial / "final.safetensors") for trial in (name, other))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def wait_for(condition: Any, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def main_while(words: Sequence[str], act: Callable[[], object]) -> int:
    """The exit code of `pipegap trial` with these words, in this process; `act` is called in
    another thread meanwhile."""
    with ThreadPoolExecutor(1) as beside:
        acting = beside.submit(act)
        code = main(words)
        acting.result()
    return code
