"""A trial's folder: config.json, metrics.jsonl and, last and atomically, result.json."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typing_extensions import override

from trainer.errors import BadInput

Row = dict[str, Any]
LOCK_PATIENCE = 30.0
"""Seconds to wait for a writer that may just be dying (a killed sweep, started again)."""


def trial_folder(config: Mapping[str, Any], trial_id: str) -> Path:
    """Where a trial is recorded: `out`, or its place in the store."""
    return Path(config["out"] or f"{config['results']}/trials/{trial_id}")


def write_atomically(path: Path, content: bytes) -> None:
    """After this, `path` holds all of `content`, also when the machine stops at any moment."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


class TrialFolder:
    """The record of one trial, written by one process at a time."""

    records = True
    """Whether this process writes it."""

    def __init__(self, path: Path, trial_id: str) -> None:
        self.path, self._trial_id = path, trial_id

    @contextmanager
    def claimed(self, config: Mapping[str, Any]) -> Iterator[TrialFolder]:
        """Makes the folder and holds its lock; raises BadInput if it is another trial's."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("w")
        except OSError as error:
            raise BadInput("out", self.path, f"must be writable ({error.strerror})") from None
        with lock:
            self._acquire(lock.fileno())
            self._refuse_another()
            write_atomically(self.path / "config.json", _json(config))
            write_atomically(self.path / "trial_id", f"{self._trial_id}\n".encode())
            yield self

    def _acquire(self, lock: int) -> None:
        deadline = time.monotonic() + LOCK_PATIENCE
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BadInput("out", self.path, "another process runs this trial") from None
                time.sleep(0.2)

    def _refuse_another(self) -> None:
        marker = self.path / "trial_id"
        held = marker.read_text().strip() if marker.exists() else self._trial_id
        if held != self._trial_id:
            allowed = f"holds trial {held}, not {self._trial_id}: choose an empty folder"
            raise BadInput("out", self.path, allowed)

    def result(self) -> Row | None:
        """The finished trial's result; None while it is unfinished or if it failed.

        Raises BadInput if the folder is another trial's.
        """
        self._refuse_another()
        path = self.path / "result.json"
        result: Row | None = json.loads(path.read_text()) if path.exists() else None
        return None if result is None or result["status"] == "failed" else result

    def finish(self, result: Row) -> None:
        """Writes result.json: the trial exists from here on."""
        write_atomically(self.path / "result.json", _json(result))

    def append(self, row: Row) -> None:
        """Adds one update's row to metrics.jsonl."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")

    def cut_back(self, num_updates: int) -> float:
        """Drops the rows of updates that no checkpoint holds.

        Returns the wall seconds that were spent, those of the dropped rows included.
        """
        path = self.path / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        kept = "".join(
            line for line, row in zip(lines, rows, strict=False) if row["update"] < num_updates
        )
        write_atomically(path, kept.encode())
        return rows[-1]["wall_seconds"] if rows else 0.0


class Onlooker(TrialFolder):
    """The same folder, as the ranks see it that do not write the record: they only read it."""

    records = False

    @contextmanager
    @override
    def claimed(self, config: Mapping[str, Any]) -> Iterator[TrialFolder]:
        yield self

    @override
    def append(self, row: Row) -> None:
        pass

    @override
    def cut_back(self, num_updates: int) -> float:
        return 0.0
