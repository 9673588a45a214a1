"""A trial's folder: config.json, metrics.jsonl and, last and atomically, result.json."""

import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from typing_extensions import override

from pipegap.trainer.base.atomic import clean, delete, partials, write_atomically, write_json
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.status import Status
from pipegap.trainer.folder import checkpoint, metrics
from pipegap.trainer.folder.checkpoint import copied
from pipegap.trainer.folder.lease import attempts, holder, leased, read, trained
from pipegap.trainer.folder.metrics import Metrics
from pipegap.trainer.folder.result import RESULT, Row, final, read_result
from pipegap.trainer.folder.wellformed import MARKER, Damaged, require_own

FILES = ("config.json", "metrics.jsonl", RESULT, MARKER)  # each has one name
OF_ATTEMPT = ("attempt", "from_update", "git", "versions", "device_name")
"""What a result says of each attempt that made a part of it; None what older ones did not note."""


class TrialFolder:
    """The record of one trial, written by one process at a time."""

    records = True  # whether this process writes the record

    def __init__(self, path: Path, trial_id: str) -> None:
        self.path, self._trial_id = path, trial_id
        self._rows = path / "metrics.jsonl"

    @contextmanager
    def claimed(
        self,
        config: Mapping[str, Any],
        made_by: Mapping[str, object],
        after: int | None = None,
    ) -> "Iterator[TrialFolder]":
        """Makes the folder and holds the trial's lease while the context lasts: see `leased`.

        The attempt notes `made_by`, see `trainer.config.identity.made_by`. Raises BadInput if the
        folder is another trial's or another process runs it, LeaseLost if one took it over.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            require_own(self.path, self._trial_id)
        except OSError as error:
            key = "results" if config["out"] is None else "out"
            raise BadInput(key, config[key], f"must be writable ({error.strerror})") from None
        with (
            leased(self.path, self._outcome, made_by, after) as self._lease,
            ExitStack() as self._open,
        ):
            clean(self.path, self._lease.started_ns)
            write_json(self.path / "config.json", config, self._lease.require)
            marker = f"{self._trial_id}\n".encode()
            write_atomically(self.path / MARKER, marker, self._lease.require)
            yield self

    def _outcome(self) -> str:
        done = self.result()
        return Status.FAILED if done is None else done["status"]

    def result(self) -> Row | None:
        """The result of a finished trial; None if it has none yet, or failed.

        Raises BadInput if the folder is another trial's.
        """
        require_own(self.path, self._trial_id)
        return final(read_result(self.path))

    def newest_checkpoint(self) -> Path | None:
        """The newest checkpoint whose rows are all there; None: the trial starts anew.

        A newer one is left aside, with a line on stderr: only training again makes its lost rows.
        """
        for path, why_not in self._checkpoints():
            if not why_not:
                return path
            print(f"{path.name} is not resumed from: {why_not}", file=sys.stderr)
        return None

    def _checkpoints(self) -> Iterator[tuple[Path, str]]:
        """Yields each checkpoint, the newest first, and why no trial can resume from it, or ""."""
        lines, tried = metrics.read(self._rows), map(read, attempts(self.path))
        # Not 0 if the trial went on from another one's checkpoint.
        start = min((noted["from_update"] for noted in tried if "from_update" in noted), default=0)
        for _, num_updates, path in checkpoint.newest_first(self.path):
            # Counted, not listed: the name of a file may claim any number of updates.
            num_there = sum(start <= update < num_updates for update in lines)
            if num_lost := num_updates - start - num_there:
                first = next(update for update in range(start, num_updates) if update not in lines)
                missing_rows = f"{num_lost} rows before it, that of update {first} first"
                yield path, f"{self._rows} lacks {missing_rows}"
                continue
            rows = (line.content for update, line in lines.items() if update < num_updates)
            noted = checkpoint.rows_digest(path, self._trial_id)
            is_same = noted in (None, metrics.digest(rows))
            yield path, "" if is_same else f"{self._rows} has other rows than when it was saved"

    def require_sound(self, config: Mapping[str, Any]) -> None:
        """Raises BadInput for a folder in a file's place, or a checkpoint that cannot be resumed.

        Nothing is written yet. What a running process replaces meanwhile is not looked at.
        """
        for name in FILES:
            if (self.path / name).is_dir():
                raise Damaged(self.path / name, "is a folder, where a file must be")
        with suppress(FileNotFoundError):
            newest = next((path for path, why_not in self._checkpoints() if not why_not), None)
            if newest is not None:
                checkpoint.load_own(newest, self._trial_id)
            elif config["resume_from"] is not None:
                checkpoint.load_other(Path(config["resume_from"]), config)

    def resume(self, num_updates: int, path: Path | None) -> float:
        """Records that training starts after `num_updates`, and drops the rows and weights of later
        updates.

        `path`: the checkpoint of this trial that it resumes from, which is this attempt's from now
        on. Returns the wall seconds that earlier attempts took, the dropped rows included.
        """
        self._lease.note(from_update=num_updates)
        if path is not None:
            checkpoint.adopt(path, self._lease.number, self._lease.require)
        sets = checkpoint.kept_weights(self.path)
        delete(path for update, path in sets.items() if update > num_updates)
        lines = metrics.read(self._rows)
        rows = [line.content for update, line in lines.items() if update < num_updates]
        self._metrics = Metrics(self._rows, rows, self._lease.require)
        self._open.enter_context(closing(self._metrics))
        self._thread = self._open.enter_context(ThreadPoolExecutor(1, "checkpoint"))
        self._saving: Future[None] | None = None
        self._open.callback(self._saved)
        return max((line.wall_seconds for line in lines.values()), default=0.0)

    def append(self, row: Row) -> None:
        """Appends the row of one update to metrics.jsonl. Raises LeaseLost."""
        self._lease.require()
        self._metrics.append(row)

    def save(
        self, num_updates: int, state: Row, wait: bool = True, *, may_change: bool = True
    ) -> None:
        """Saves the state after `num_updates`, once its rows are on disk. Raises LeaseLost.

        Without `wait` the state is written while the trial goes on, a copy of it if the trial
        `may_change` it: the next `save` or `finish`, or the end of the trial's context, raises what
        goes wrong.
        """
        self._metrics.sync()
        whole = {**state, "rows": self._metrics.digest}
        self._saved()  # before the copy: the host's memory holds one state, not two
        state_to_save = whole if wait or not may_change else copied(whole)
        number, permit = self._lease.number, self._lease.require
        write = partial(checkpoint.save, self.path, num_updates, state_to_save, number, permit)
        if wait:
            write()
        else:
            self._saving = self._thread.submit(write)

    def _saved(self) -> None:
        """Returns when no checkpoint is being written; raises what went wrong with the last one."""
        last, self._saving = self._saving, None
        if last is not None:
            last.result()

    def keep_weights(self, num_updates: int, weights: Mapping[str, Tensor], number: int) -> None:
        """Keeps the weights after `num_updates`, as one of the last `number` sets. Raises
        LeaseLost."""
        checkpoint.keep_weights(self.path, num_updates, weights, number, self._lease.require)

    def finish(self, result: Row) -> Row:
        """Writes and returns the final result, with the attempts that made it. Raises LeaseLost."""
        self._saved()
        self._metrics.sync()
        whole = self._write(result)
        delete(_strays(self.path))
        return whole

    def fail(self, result: Row) -> None:
        """Writes the result of a trial that failed: it may run again. Raises LeaseLost."""
        self._write(result)

    def _write(self, result: Row) -> Row:
        made_by = [{key: attempt.get(key) for key in OF_ATTEMPT} for attempt in trained(self.path)]
        whole = {**result, "attempts": made_by, "finished_at": time.time()}
        write_json(self.path / RESULT, whole, self._lease.require)
        return whole


def tidy(folder: Path) -> None:
    """Deletes checkpoints and temporary files that killed processes left in a finished folder.

    Does nothing while a process holds the trial, nor where the folder cannot be written.
    """
    # Listed before the look at the holder: a process that takes the trial now may write new ones.
    if (strays := _strays(folder)) and holder(folder) is None:
        with suppress(OSError):
            delete(strays)


def _strays(folder: Path) -> list[Path]:
    return [*partials(folder), *(saved.path for saved in checkpoint.newest_first(folder))]


class ReadOnlyFolder(TrialFolder):
    """The folder of a trial for the ranks that do not write its record."""

    records = False

    @contextmanager
    @override
    def claimed(
        self,
        config: Mapping[str, Any],
        made_by: Mapping[str, object],
        after: int | None = None,
    ) -> Iterator[TrialFolder]:
        yield self

    @override
    def newest_checkpoint(self) -> Path | None:
        return None

    @override
    def resume(self, num_updates: int, path: Path | None) -> float:
        return 0.0

    @override
    def append(self, row: Row) -> None:
        pass

    @override
    def save(
        self, num_updates: int, state: Row, wait: bool = True, *, may_change: bool = True
    ) -> None:
        pass

    @override
    def keep_weights(self, num_updates: int, weights: Mapping[str, Tensor], number: int) -> None:
        pass

    @override
    def finish(self, result: Row) -> Row:
        return result
