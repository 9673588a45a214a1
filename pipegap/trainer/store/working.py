"""The folder in which a trial of an object store is trained, and what of it reaches the store.

Files are uploaded first, each to a key of its own below the attempt's, and count once the trial's
register names them. The objects that it no longer names are deleted after.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import IO, Any

from pipegap.trainer.base.children import repeated
from pipegap.trainer.base.errors import LeaseLost
from pipegap.trainer.folder.lease import NAME, new_attempt
from pipegap.trainer.store.bucket import BucketClient, StoreAway, StoreRefuses
from pipegap.trainer.store.register import (
    ARCHIVED,
    CHECKPOINT,
    RESULT,
    File,
    Register,
    Seen,
    fetch,
    names_in,
    objects,
)

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
UPLOAD_EVERY = 10.0
"""Seconds between two uploads of what is new."""
TRY_EVERY, TRY_FOR = 1.0, 600.0
"""Seconds between two tries to give a trial back, and after which an upload has failed for good."""

Stamp = tuple[int, int, int]


class WorkingFolder:
    """The folder `path` in which the trial is trained whose register is `state_seen`.

    `config` is what the store has of the trial's config: it names no folder of this machine.
    `driver`: the token of this process's driver.
    """

    def __init__(
        self,
        bucket: BucketClient,
        state_seen: Seen,
        path: Path,
        config: Mapping[str, Any],
        driver: str,
    ) -> None:
        self._bucket, self._seen, self._path, self._driver = bucket, state_seen, path, driver
        self._config: File = {"text": json.dumps(config, indent=1) + "\n"}
        self._known: dict[Stamp, File] = {}
        """Content of a file here → where the store has it. A renamed file has the same stamp."""
        self._kept: dict[str, File] = {}
        """Files of the trial that were not fetched, and stay as they are."""
        self._num_uploaded = 0
        self._rows: tuple[int, File] | None = None
        """Bytes of the rows that were uploaded last, and where."""
        self._is_lost = False

    def is_lost(self) -> bool:
        """Return whether another process has the trial: this one must stop."""
        return self._is_lost

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the trial while the context lasts, with what was there before and what is made.

        While the store is away the trial goes on. Raises LeaseLost if another process has it.
        """
        register_before = self._seen.register
        attempt = register_before.attempt + 1
        self._seen.write(attempt=attempt, holder={**new_attempt(attempt), "driver": self._driver})
        self._fetch(register_before)
        try:
            with repeated(self._push_new, UPLOAD_EVERY, "upload"):
                yield
        except BaseException as error:
            if self._is_lost:
                raise LeaseLost("another process has the trial") from error
            self._give_back()
            raise
        self._give_back()

    def _fetch(self, register_before: Register) -> None:
        """Fetch what the attempts before left, and delete what they uploaded in vain."""
        for name, file in register_before.files.items():
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
        if register_before.holder is not None:
            keys_there = {meta.key for meta in self._bucket.list(objects(register_before.trial_id))}
            self._bucket.delete(sorted(keys_there - register_before.keys))

    def _push_new(self) -> bool:
        """Upload what is new; return whether to go on."""
        try:
            self._push(self._files())
        except LeaseLost:
            self._is_lost = True
        except (StoreAway, OSError):  # a file went, as old checkpoints do: later, or at the end
            pass
        return not self._is_lost

    def _give_back(self) -> None:
        """Upload the folder as it is now, and free the trial, in one write.

        Tries again while the store is away. Raises LeaseLost, and StoreAway in the end.
        """
        deadline = monotonic() + TRY_FOR
        while True:
            try:
                self._push(self._files(last=True), holder=None)
                return
            except StoreRefuses:
                raise
            except StoreAway:
                if monotonic() > deadline:
                    raise
                time.sleep(TRY_EVERY)

    def _push(self, files: dict[str, File], **changes: Any) -> None:
        """Write a register that names `files`; delete what it no longer names."""
        register_before = self._seen.register
        if files == register_before.files and not changes:
            return
        self._seen.write(files=files, **changes)
        with suppress(StoreAway):  # `prune` finds them
            self._bucket.delete(sorted(register_before.keys - self._seen.register.keys))

    def _files(self, last: bool = False) -> dict[str, File]:
        """Return what the register shall name, uploaded.

        A checkpoint comes before the rows, so that they are all there, and the result only `last`,
        when the folder does not change any more. Raises FileNotFoundError if a file goes meanwhile.
        """
        names = sorted(names_in(self._path), key=lambda name: not name.startswith(CHECKPOINT))
        files, num_before = dict(self._kept), self._num_uploaded
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
        register_now = self._seen.register
        folder = (
            f"{objects(register_now.trial_id)}/{register_now.attempt:06d}/{self._num_uploaded:06d}"
        )
        key = f"{folder}/{name}"
        self._bucket.upload(key, content)
        return {"key": key, "size": size}


def _stamp(path: Path) -> Stamp:
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
