"""The folder in which a trial of an object store is trained, and what of it reaches the store.

Files are uploaded first, each to a key of its own below the attempt's, and count once a swap of the
trial's register names them. The objects that it no longer names are deleted after.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import IO, Any

from pipegap.trainer.base.children import repeated
from pipegap.trainer.base.errors import LeaseLost
from pipegap.trainer.base.status import Status
from pipegap.trainer.folder.lease import HEARTBEAT_EVERY, NAME
from pipegap.trainer.store import register
from pipegap.trainer.store.bucket import BucketClient, StoreAway, StoreRefuses
from pipegap.trainer.store.lease import RegisterLease
from pipegap.trainer.store.register import ARCHIVED, CHECKPOINT, RESULT, File, fetch, names_in, see

CONFIG, METRICS = "config.json", "metrics.jsonl"
DOCUMENTS = (".json", "trial_id")
"""How the names of files end that stand in the register itself, if they are small. A result always
does: it says that the trial is done."""
SMALL = 32_000
"""Bytes of the largest such file."""
GROWTH = 1.2
"""How much longer the rows are when they are uploaded again without a new checkpoint: all uploads
together then are at most six times their size."""
NOT_NEEDED = (".safetensors",)
"""Endings of files that no attempt at the trial reads."""
LISTS = 5
"""How often a folder is listed again because a file had gone."""
TRY_EVERY, TRY_FOR = 1.0, 600.0
"""Seconds between two tries to give a trial back, and after which an upload has failed for good."""

Stamp = tuple[int, int, int]


class WorkingFolder:
    """The folder `path` in which the trial that `lease` holds is trained.

    `config` is what the store has of the trial's config: it names no folder of this machine.
    """

    def __init__(
        self, bucket: BucketClient, lease: RegisterLease, path: Path, config: Mapping[str, Any]
    ) -> None:
        self._bucket, self._lease, self._path = bucket, lease, path
        self._config: File = {"text": json.dumps(config, indent=1) + "\n"}
        self._known: dict[Stamp, File] = {}
        """Content of a file here → where the store has it. A renamed file has the same stamp."""
        self._kept: dict[str, File] = {}
        """Files of the trial that were not fetched, and stay as they are."""
        self._num_uploaded = 0
        self._rows: tuple[int, File] | None = None
        """Bytes of the rows that were uploaded last, and where."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the trial while the context lasts, with what was there before and what is made.

        Raises LeaseLost if another process took the trial, or may have.
        """
        with self._lease.heartbeat():
            try:
                self._fetch()
            except BaseException as error:
                with suppress(LeaseLost, StoreAway):
                    files = self._lease.register.files
                    self._lease.swap(
                        files={**files, **_ended(files, type(error).__name__)}, holder=None
                    )
                raise
            try:
                with repeated(self._push_new, HEARTBEAT_EVERY, "upload"):
                    yield
            except BaseException as error:
                if self._lease.is_lost():
                    raise LeaseLost("the trial was, or may be, taken over") from error
                self._give_back(type(error).__name__)
                raise
            self._give_back(Status.FAILED)

    def _fetch(self) -> None:
        """Fetch what the attempts before left, and delete what they uploaded in vain."""
        before = self._lease.before
        for name, file in before.files.items():
            if name.startswith(ARCHIVED) or name.endswith(NOT_NEEDED):
                self._kept[name] = file
                continue
            try:
                fetch(self._bucket, file, self._path / name)
            except FileNotFoundError:
                says = f"{file['key']} is gone or not whole: its trial goes on without {name}"
                print(says, file=sys.stderr)
                continue
            if NAME.fullmatch(name):  # of a process that does not hold the folder here
                os.utime(self._path / name, (0, 0))
            if "key" in file:
                self._known[_stamp(self._path / name)] = file
        if before.holder is not None:
            there = {meta.key for meta in self._bucket.list(register.objects(before.trial_id))}
            self._bucket.delete(sorted(there - before.keys))

    def _push_new(self) -> bool:
        """Upload what is new; return whether to go on."""
        try:
            self._push(self._files())
        except LeaseLost:
            return False
        except (StoreAway, OSError):  # later, or at the end
            pass
        return True

    def _give_back(self, how: str) -> None:
        """Upload the folder as it is now, and free the trial, in one swap.

        `how` the attempt ended is recorded unless its file says so. Tries again while the store is
        away and the trial is still this process's. Raises LeaseLost, and StoreAway in the end.
        """
        deadline = monotonic() + TRY_FOR
        while True:
            try:
                files = self._files(last=True)
                self._push(files | _ended(files, how), holder=None)
                return
            except StoreRefuses:
                raise
            except StoreAway:
                if monotonic() > deadline:
                    raise
                time.sleep(TRY_EVERY)

    def _push(self, files: dict[str, File], **changes: Any) -> None:
        """Swap the register for one that names `files`; delete what it no longer names."""
        before = self._lease.register
        if files == before.files and not changes:
            return
        numbers = [int(match[1]) for name in files if (match := NAME.fullmatch(name))]
        try:
            attempt = max([before.attempt, *numbers])
            self._lease.swap(files=files, attempt=attempt, **changes)
            unnamed = before.keys - self._lease.register.keys
        except LeaseLost:  # what was uploaded in vain goes, unless the heir has taken it over
            with suppress(StoreAway):
                seen = see(self._bucket, before.trial_id)
                if seen is not None:
                    mine = replace(before, files=files).keys
                    self._bucket.delete(sorted(mine - seen.register.keys))
            raise
        with suppress(StoreAway):  # `prune` finds them
            self._bucket.delete(sorted(unnamed))

    def _files(self, last: bool = False) -> dict[str, File]:
        """Return what the register shall name, uploaded.

        A checkpoint comes before the rows, so that they are all there, and the result only `last`,
        when the folder does not change any more.
        """
        for _ in range(LISTS):
            with suppress(FileNotFoundError):
                return self._listed(last)
        return self._listed(last)

    def _listed(self, last: bool) -> dict[str, File]:
        names = sorted(names_in(self._path), key=lambda name: not name.startswith(CHECKPOINT))
        newest, num_before = self._lease.register.attempt_file, self._num_uploaded
        files = {**self._kept, newest: self._lease.register.files[newest]}
        for name in names:
            if name == METRICS:
                files[name] = self._metrics(at_once=last or self._num_uploaded > num_before)
            elif name != RESULT or last:
                files[name] = self._config if name == CONFIG else self._file(name)
        return files

    def _file(self, name: str) -> File:
        """Return where the store has a file; upload it if need be. Raises FileNotFoundError."""
        path = self._path / name
        stamp = _stamp(path)
        if name == RESULT or (name.endswith(DOCUMENTS) and stamp[2] <= SMALL):
            with suppress(UnicodeDecodeError):
                return {"text": path.read_bytes().decode()}
        if stamp not in self._known:
            with path.open("rb") as file:
                self._known[stamp] = self._upload(name, file, stamp[2])
        return self._known[stamp]

    def _metrics(self, at_once: bool) -> File:
        """Return where the store has the rows: those uploaded last, if they grew by little."""
        path = self._path / METRICS
        stamp = _stamp(path)
        if stamp in self._known:
            return self._known[stamp]
        if self._rows and not at_once and self._rows[0] <= stamp[2] < GROWTH * self._rows[0]:
            return self._rows[1]
        content = path.read_bytes()
        self._rows = (len(content), self._upload(METRICS, content, len(content)))
        if len(content) == stamp[2]:  # else the trial has appended to it meanwhile
            self._known[stamp] = self._rows[1]
        return self._rows[1]

    def _upload(self, name: str, content: bytes | IO[bytes], size: int) -> File:
        self._num_uploaded += 1
        now = self._lease.register
        folder = f"{register.objects(now.trial_id)}/{now.attempt:06d}/{self._num_uploaded:06d}"
        key = f"{folder}/{name}"
        self._bucket.upload(key, content)
        return {"key": key, "size": size}


def _ended(files: Mapping[str, File], how: str) -> dict[str, File]:
    """Return the newest attempt's file with its end; nothing if it tells the end already."""
    newest = max(filter(NAME.fullmatch, files))
    try:
        content = json.loads(files[newest]["text"])
    except (LookupError, ValueError):
        return {}
    if "ended" in content:
        return {}
    ended = {**content, "ended": how, "ended_at": time.time()}
    return {newest: {"text": json.dumps(ended, indent=1) + "\n"}}


def _stamp(path: Path) -> Stamp:
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
