"""The copy of an object store on this machine, laid out as a store of files.

What reads a store of files reads this copy. It is derived: it may be deleted at any time, and
nothing that was changed in it reaches the store. A pull asks for what changed since the last one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from analysis.objects import register
from analysis.objects.bucket import Bucket, Meta, StoreAway
from analysis.objects.register import File, Seen
from trainer.base.errors import BadInput
from trainer.folder.wellformed import Damaged

ACCOUNTS = (
    *("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_S3_ENDPOINT"),
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
)
"""Variables by which the same URL is another bucket."""
LEFT_THERE = (".pt", ".safetensors")
"""How the names of files end that are fetched only by who needs them: weights."""
ARCHIVED = "earlier-"
"""How the folders begin that keep what a trial made before it ran again."""
AT_ONCE = 32
"""Requests at a time."""
TRIES = 5
"""How often a register is read again because an object that it named was gone."""
PLAIN = "sweeps"
"""The folder whose objects have no register: records of sweeps, which are written as a whole."""
NOTES, URL = ".pulled.json", ".url"
"""Files of the copy: what it has, and of which store."""


class Note(NamedTuple):
    """What the copy has of a trial."""

    e_tag: str
    """Of the register that it was made of."""
    keys: dict[str, str]
    """Files with an object of their own → its key."""


class Notes(NamedTuple):
    """What the copy has."""

    trials: dict[str, Note]
    plain: dict[str, str]
    """Key of an object without a register → its etag."""


def folder_of(url: str) -> Path:
    """Where the copy of a store lies, and the working folders of its trials."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    whole = [url, *(os.environ.get(name, "") for name in ACCOUNTS)]
    digest = hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:16]
    return base / "pipegap" / "stores" / digest


class Mirror:
    """The copy of what `bucket` holds, in the folder `path`."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket, self.path = bucket, folder_of(bucket.url) / "copy"

    def pull(self) -> None:
        """Fetches what changed: one request for each 1,000 trials, one or two for each that did.

        Warns of registers that are damaged. Raises StoreAway, and BadInput if this machine has no
        place for the copy.
        """
        try:
            (self.path / "trials").mkdir(parents=True, exist_ok=True)
            _write(self.path / URL, f"{self.bucket.url}\n".encode())
            with self._locked():
                damaged = self._pull()
        except OSError as error:
            allowed = f"must be a folder that can be written ({error.strerror})"
            raise BadInput("XDG_CACHE_HOME", self.path, allowed) from None
        for one in damaged:
            warnings.warn(f"not counted: {one}; delete it to start its trial anew", stacklevel=2)

    def _pull(self) -> list[Damaged]:
        notes = self._read_notes()
        before = json.dumps(notes)
        listed = {_id_of(meta): meta for meta in self.bucket.list(register.FOLDER)}
        for gone in notes.trials.keys() - listed.keys():
            shutil.rmtree(self.path / "trials" / gone, ignore_errors=True)
            del notes.trials[gone]
        known = {of: note.e_tag for of, note in notes.trials.items()}
        changed = {of: meta for of, meta in listed.items() if known.get(of) != meta.e_tag}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            made = [*pool.map(lambda of: self._trial(of, changed[of], notes), changed)]
            self._pull_plain(notes, pool)
        for trial_id, note in zip(changed, made, strict=True):
            if isinstance(note, Note):
                notes.trials[trial_id] = note
        if json.dumps(notes) != before:
            _write(self.path / NOTES, json.dumps(notes).encode())
        return [one for one in made if isinstance(one, Damaged)]

    def _trial(self, trial_id: str, meta: Meta, notes: Notes) -> Note | Damaged:
        """Makes the trial's folder as its register says; `meta`: of the register, as listed."""
        known = notes.trials.get(trial_id, Note("", {}))
        for _ in range(TRIES):
            try:
                seen = self.seen(trial_id)
                if seen is None:
                    raise FileNotFoundError
                self._fill(self.path / "trials" / trial_id, seen, known)
            except FileNotFoundError:  # the holder has replaced what the register named
                continue
            except ValueError as error:
                return Damaged(Path(register.key(trial_id)), str(error))
            files = seen.register.files
            keys = {name: file["key"] for name, file in files.items() if _is_copied(name, file)}
            return Note(meta.e_tag, keys)
        raise StoreAway(f"results={self.bucket.url}: {trial_id} changes too often to be read")

    def seen(self, trial_id: str) -> Seen | None:
        """The register of a trial; None if it has none. Raises ValueError if it is damaged."""
        try:
            found = self.bucket.read(register.key(trial_id))
        except FileNotFoundError:
            return None
        return Seen(register.read(found.content), found.version, found.modified)

    def _fill(self, folder: Path, seen: Seen, known: Note) -> None:
        """A result is the first that goes, and the last that comes: it says that the rest stays."""
        wanted = {name: file for name, file in seen.register.files.items() if _is_shown(name)}
        there = {*_names(folder)}
        for name in sorted(there - {*wanted}, key=_result_first):
            (folder / name).unlink(missing_ok=True)
        for name in sorted(wanted, key=_result_first, reverse=True):
            file = wanted[name]
            if "text" in file or known.keys.get(name) != file["key"] or name not in there:
                fetch(self.bucket, file, folder / name)
        if seen.register.holder is not None:
            self._date(folder / seen.register.attempt_file, seen)

    def _date(self, attempt: Path, seen: Seen) -> None:
        """Gives the attempt's file the age of the holder's last heartbeat, on the server's clock
        alone: by it a folder says whether its holder is stale."""
        with suppress(FileNotFoundError):
            heard = time.time() - max(0.0, self._server_time(seen) - seen.modified)
            os.utime(attempt, (heard, heard))

    def _server_time(self, seen: Seen) -> float:
        try:
            return self.bucket.now()
        except StoreAway:  # who may only read asks for no time
            return seen.modified

    def _pull_plain(self, notes: Notes, pool: ThreadPoolExecutor) -> None:
        listed = {meta.key: meta for meta in self.bucket.list(PLAIN)}
        for gone in notes.plain.keys() - listed.keys():
            (self.path / gone).unlink(missing_ok=True)
            del notes.plain[gone]
        changed = [key for key, meta in listed.items() if notes.plain.get(key) != meta.e_tag]
        for key, content in zip(changed, pool.map(self.bucket.read, changed), strict=True):
            path = self.path / key
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, content.content)
            notes.plain[key] = listed[key].e_tag

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time writes the copy."""
        with (self.path / ".lock").open("w") as lock:
            flock(lock, LOCK_EX)
            yield

    def _read_notes(self) -> Notes:
        """Empty if the copy is new, or if the file is damaged: then all is fetched again."""
        with suppress(OSError, ValueError, TypeError, AttributeError):
            trials, plain = json.loads((self.path / NOTES).read_bytes())
            return Notes({of: Note(*note) for of, note in trials.items()}, dict(plain))
        return Notes({}, {})


def fetch(bucket: Bucket, file: File, path: Path) -> None:
    """Writes a file of a register, unless it is there with this text. Raises FileNotFoundError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if "text" in file:
        content = file["text"].encode()
        if not path.is_file() or path.read_bytes() != content:
            _write(path, content)
        return
    partial = _beside(path)
    try:
        bucket.download(file["key"], partial, file["size"])
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _id_of(meta: Meta) -> str:
    return Path(meta.key).stem


def _is_shown(name: str) -> bool:
    return not name.endswith(LEFT_THERE) and not name.startswith(ARCHIVED)


def _is_copied(name: str, file: File) -> bool:
    return "key" in file and _is_shown(name)


def _names(folder: Path) -> Iterator[str]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name[0] != ".")
    return (str(path.relative_to(folder)) for path in found)


def _result_first(name: str) -> bool:
    return name != "result.json"


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid4().hex}.partial")


def _write(path: Path, content: bytes) -> None:
    """Replaces a file at once. It need not survive the machine: the store has it."""
    partial = _beside(path)
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
