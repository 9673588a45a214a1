"""The folder in which a trial of an object store is trained, and what of it reaches the store.

Files are uploaded first, each to a key of its own below the attempt's, and count once a swap of the
trial's register names them. The objects that it no longer names are deleted after.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from time import monotonic
from typing import IO, Any

from analysis.objects import register
from analysis.objects.bucket import Bucket, StoreAway, StoreRefuses
from analysis.objects.mirror import ARCHIVED, fetch
from analysis.objects.register import File
from sweeps.store.claim import Claim, see
from trainer.base.children import repeated
from trainer.base.errors import LeaseLost
from trainer.folder.lease import HEARTBEAT_EVERY, NAME

CONFIG, METRICS, RESULT, CHECKPOINT = "config.json", "metrics.jsonl", "result.json", "checkpoint-"
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


class Working:
    """The folder `path` of the trial that `claim` holds. `config` is what the store has of it,
    which names no folder of this machine."""

    def __init__(self, bucket: Bucket, claim: Claim, path: Path, config: Mapping[str, Any]) -> None:
        self._bucket, self._claim, self._path = bucket, claim, path
        self._config: File = {"text": json.dumps(config, indent=1) + "\n"}
        self._known: dict[Stamp, File] = {}
        """Content of a file here → where the store has it. A renamed file has the same stamp."""
        self._kept: dict[str, File] = {}
        """Files of the trial that were not fetched, and stay as they are."""
        self._num_uploaded = 0
        self._rows: tuple[int, File] | None = None
        """Bytes of the rows that were uploaded last, and where."""

    def fetch(self) -> None:
        """Fetches what the attempts before left, and deletes what they uploaded in vain."""
        before = self._claim.before
        for name, file in before.files.items():
            if name.startswith(ARCHIVED) or name.endswith(NOT_NEEDED):
                self._kept[name] = file
                continue
            fetch(self._bucket, file, self._path / name)
            if NAME.fullmatch(name):  # of a process that does not hold the folder here
                os.utime(self._path / name, (0, 0))
            if "key" in file:
                self._known[_stamp(self._path / name)] = file
        if before.holder is not None:
            there = {one.key for one in self._bucket.list(register.objects(before.trial_id))}
            self._bucket.delete(sorted(there - before.keys))

    def pushed(self) -> AbstractContextManager[None]:
        """Uploads what is new, again and again, from a thread while the context lasts."""

        def push() -> bool:
            try:
                self._push(self._files())
            except (StoreAway, OSError):  # later, or at the end
                return True
            except LeaseLost:
                return False
            return True

        return repeated(push, HEARTBEAT_EVERY, "upload")

    def abandon(self, how: str) -> None:
        """Frees the trial with the files that it had. Raises LeaseLost, StoreAway."""
        files = self._claim.register.files
        self._claim.swap(files={**files, **_ended(files, how)}, holder=None)

    def give_back(self, how: str) -> None:
        """Uploads the folder as it is now, and frees the trial, in one swap; `how` the attempt
        ended, unless its file says so. Tries again while the store is away and the trial is still
        this process's. Raises LeaseLost, and StoreAway if that does not help."""
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
        before = self._claim.register
        if files == before.files and not changes:
            return
        numbers = [int(found[1]) for name in files if (found := NAME.fullmatch(name))]
        attempt = max([before.attempt, *numbers])
        try:
            self._claim.swap(files=files, attempt=attempt, **changes)
        except LeaseLost:
            self._take_back(files)
            raise
        self._delete(before.keys - self._claim.register.keys)

    def _take_back(self, files: Mapping[str, File]) -> None:
        """Deletes what was uploaded in vain. What the register names has been taken over."""
        trial_id = self._claim.register.trial_id
        with suppress(StoreAway):
            found = see(self._bucket, trial_id)
            mine = {file["key"] for file in files.values() if "key" in file}
            if found is not None:
                self._delete(mine - found.register.keys)

    def _delete(self, keys: set[str]) -> None:
        with suppress(StoreAway):  # `prune` finds them
            self._bucket.delete(sorted(keys))

    def _files(self, last: bool = False) -> dict[str, File]:
        """What the register shall name, uploaded.

        A checkpoint comes before the rows, so that they are all there, and the result only `last`,
        when the folder does not change any more.
        """
        for _ in range(LISTS):
            with suppress(FileNotFoundError):
                return self._listed(last)
        return self._listed(last)

    def _listed(self, last: bool) -> dict[str, File]:
        names = sorted(_names(self._path), key=lambda name: not name.startswith(CHECKPOINT))
        if not last:
            names = [name for name in names if name != RESULT]
        found: dict[str, File] = {}
        num_before = self._num_uploaded
        for name in names:
            if name == METRICS:
                found[name] = self._metrics(at_once=last or self._num_uploaded > num_before)
            else:
                found[name] = self._config if name == CONFIG else self._file(name)
        placeholder = self._claim.register.attempt_file
        held = self._claim.register.files.get(placeholder)
        return {**self._kept, **({placeholder: held} if held else {}), **found}

    def _file(self, name: str) -> File:
        """Where the store has a file, which is uploaded if need be. Raises FileNotFoundError."""
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
        """The rows so far; those that were uploaded last, if they grew by little."""
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
        now = self._claim.register
        place = f"{register.objects(now.trial_id)}/{now.attempt:06d}/{self._num_uploaded:06d}"
        key = f"{place}/{name}"
        self._bucket.upload(key, content)
        return {"key": key, "size": size}


def _ended(files: Mapping[str, File], how: str) -> dict[str, File]:
    """The newest attempt's file, if it does not say how the attempt ended."""
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
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _names(folder: Path) -> Iterator[str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    names = (str(path.relative_to(folder)) for path in found)
    return (name for name in names if not any(part.startswith(".") for part in name.split("/")))
