"""A trial's folder: config.json, metrics.jsonl and, last and atomically, result.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typing_extensions import override

from trainer.atomic import clean, write_atomically, write_json
from trainer.errors import BadInput
from trainer.lease import leased

Row = dict[str, Any]


def trial_folder(config: Mapping[str, Any], trial_id: str) -> Path:
    """Where a trial is recorded: `out`, or its place in the store."""
    return Path(config["out"] or f"{config['results']}/trials/{trial_id}")


class TrialFolder:
    """The record of one trial, written by one process at a time."""

    records = True
    """Whether this process writes it."""

    def __init__(self, path: Path, trial_id: str) -> None:
        self.path, self._trial_id = path, trial_id

    @contextmanager
    def claimed(self, config: Mapping[str, Any]) -> Iterator[TrialFolder]:
        """Makes the folder and holds the trial's lease; raises BadInput if it is another trial's,
        or if another process runs it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._refuse_another()
        except OSError as error:
            raise BadInput("out", self.path, f"must be writable ({error.strerror})") from None
        with leased(self.path, self._outcome) as self._lease:
            clean(self.path)
            write_json(self.path / "config.json", config)
            write_atomically(self.path / "trial_id", f"{self._trial_id}\n".encode())
            yield self

    def _outcome(self) -> str:
        done = self.result()
        return "failed" if done is None else done["status"]

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
        result = read_result(self.path)
        return None if result is None or result["status"] == "failed" else result

    def require(self) -> None:
        """Raises LeaseLost if another process took the trial over, and so writes the record."""
        self._lease.require()

    def starts(self, num_updates: int) -> float:
        """Notes that training starts after `num_updates`, and drops the rows of later ones.

        Returns the wall seconds that were spent, those of the dropped rows included.
        """
        self._lease.note(from_update=num_updates)
        path = self.path / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        kept = "".join(
            line for line, row in zip(lines, rows, strict=False) if row["update"] < num_updates
        )
        write_atomically(path, kept.encode())
        return rows[-1]["wall_seconds"] if rows else 0.0

    def finish(self, result: Row) -> None:
        """Writes result.json: the trial exists from here on."""
        self.require()
        write_json(self.path / "result.json", result)

    def append(self, row: Row) -> None:
        """Adds one update's row to metrics.jsonl."""
        self.require()
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")


def read_result(folder: Path) -> Row | None:
    """What result.json says; None if there is none, or one that is not whole.

    Since it is written atomically, no such file is ours: the trial has to run again.
    """
    try:
        result: Row = json.loads((folder / "result.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return result


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
    def require(self) -> None:
        pass

    @override
    def starts(self, num_updates: int) -> float:
        return 0.0
