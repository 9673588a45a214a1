"""Attempts at a trial in a folder, without its training."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipegap.trainer.folder import checkpoint, lease
from pipegap.trainer.folder.record import TrialFolder
from pipegap.trainer.folder.result import Row
from tests.support.records import state


def row(update: int) -> Row:
    return {"update": update, "wall_seconds": float(update)}


def train(folder: TrialFolder, last: int) -> int:
    """Resumes, trains to update `last` and saves; returns the update that it began with."""
    path = folder.newest_checkpoint()
    first = 0 if path is None else int(checkpoint.load_own(path, "a")["num_updates"])
    folder.resume(first, path)
    for update in range(first, last):
        folder.append(row(update))
    folder.save(last, state(last))
    return first


@contextmanager
def attempt(path: Path, **made_by: object) -> Iterator[TrialFolder]:
    """The next attempt, without the end of the one before: as if that had fallen asleep."""
    for held in lease.attempts(path):
        held.write_text(json.dumps({**lease.read(held), "machine": "elsewhere"}))
        os.utime(held, (0, 0))
    with TrialFolder(path, "a").claimed({}, made_by) as folder:
        yield folder


def updates(path: Path) -> list[int]:
    lines = (path / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["update"] for line in lines]


def saved(path: Path) -> list[tuple[int, int]]:
    """Attempt and updates of each checkpoint."""
    return [(file.attempt, file.num_updates) for file in checkpoint.newest_first(path)]
