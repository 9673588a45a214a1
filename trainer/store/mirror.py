"""The copy of an object store on this machine.

What reads a store reads a folder. An object store is read in a copy on this machine, laid out as a
store of files. The copy is derived: it may be deleted at any time, and nothing that was changed in
it reaches the store. A pull asks for what changed since the last one.
"""

import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import NamedTuple

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import cache_folder
from pipegap.trainer.folder.wellformed import Damaged, content, said
from pipegap.trainer.store import register
from pipegap.trainer.store.bucket import BucketClient, StoreAway, Torn
from pipegap.trainer.store.provider import ENDPOINTS
from pipegap.trainer.store.register import ARCHIVED, RESULT, Seen, fetch, names_in, see, write

WEIGHTS = (".pt", ".safetensors")
"""Endings of files that only a trial that goes on fetches."""
AT_ONCE = 32
"""Requests at a time."""
TRIES = 5
"""How often an object is read again because it, or what it named, was replaced meanwhile."""
SWEEPS = "sweeps"
"""The folder whose objects have no register: records of sweeps, which are written as a whole."""
LISTED = (register.FOLDER, SWEEPS)
"""The folders whose objects a pull lists."""
AGAIN = "delete what is damaged, and its trial runs again with its sweep"
GONE = "is gone, though the register of its trial names it"
TORN = "is not as long as the register of its trial says"
NOT_OURS = "is no object of a store: move it away"
NOTES = ".pulled.json"
"""The file of the copy that says what it has."""


class Note(NamedTuple):
    """What the copy has of a register, or of a record of a sweep."""

    e_tag: str
    keys: dict[str, str]
    """Files that the register names with an object of their own → its key."""


class Pulled(NamedTuple):
    """What became of the copy of an object."""

    keys: dict[str, str]
    """Those of its note."""
    damaged: Sequence[Damaged] = ()


def folder_of(url: str) -> Path:
    """Return where the copy of a store lies, and the working folders of its trials.

    At another endpoint the same URL is another bucket.
    """
    whole = [url, *(os.environ.get(name, "") for name in ENDPOINTS)]
    digest = hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:16]
    return cache_folder() / "stores" / digest


class Mirror:
    """The copy of what `bucket` holds, in the folder `path`."""

    def __init__(self, bucket: BucketClient) -> None:
        self.bucket, self.path = bucket, folder_of(bucket.url) / "copy"

    def pull(self) -> None:
        """Fetch what changed: one request for each 1,000 trials, one or two for each that did.

        Warns of registers that are damaged. Raises StoreAway, and BadInput if this machine has no
        place for the copy.
        """
        try:
            (self.path / "trials").mkdir(parents=True, exist_ok=True)
            with (self.path / ".lock").open("w") as lock:
                flock(lock, LOCK_EX)  # one process at a time writes the copy
                damaged = self._pull()
        except OSError as error:
            allowed = f"must be a folder that can be written ({error.strerror})"
            raise BadInput("XDG_CACHE_HOME", self.path, allowed) from None
        if damaged:
            say = f"left out: {said(damaged)}: {AGAIN}"
            warnings.warn(say, stacklevel=2)

    def _pull(self) -> list[Damaged]:
        """Return what is damaged, or out of place."""
        notes = self._read_notes()
        before = json.dumps(notes)
        metas = [m for folder in LISTED for m in self.bucket.list(folder)]
        listed = {meta.key: meta.e_tag for meta in metas if is_known(meta.key)}
        for gone in notes.keys() - listed.keys():
            self._delete(gone)
            del notes[gone]
        known = {key: notes.get(key, Note("", {})) for key in listed}
        changed = [key for key, e_tag in listed.items() if known[key].e_tag != e_tag]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            outcomes = [*pool.map(lambda key: self._update(key, known[key].keys), changed)]
        for key, outcome in zip(changed, outcomes, strict=True):
            # What is damaged is looked at again by the next pull.
            notes[key] = Note("" if outcome.damaged else listed[key], outcome.keys)
        if json.dumps(notes) != before:
            write(self.path / NOTES, json.dumps(notes).encode())
        aliens = [meta for meta in metas if not is_known(meta.key) and not meta.is_folder]
        damaged = [damage for outcome in outcomes for damage in outcome.damaged]
        return [*damaged, *(Damaged(Path(meta.key), NOT_OURS) for meta in aliens)]

    def _update(self, key: str, known: dict[str, str]) -> "Pulled":
        """Bring the copy up to date with the object `key`.

        `known`: the keys of the note before. What a damaged register said before stays.
        """
        for _ in range(TRIES):
            try:
                if _is_record(key):
                    write(self._path(key), self.bucket.read(key).content)
                    return Pulled({})
                if (seen := see(self.bucket, _trial_id(key))) is None:
                    return Pulled({})  # the next pull sees that it is gone
                update = self._fill(self._path(key), seen, known)
                if not update.damaged or see(self.bucket, _trial_id(key)) == seen:
                    return update
            except FileNotFoundError:
                return Pulled({})
            except Damaged as error:
                return Pulled(known, [error])
        raise StoreAway(f"results={self.bucket.url}: {key} changes too often to be read")

    def _fill(self, folder: Path, seen: Seen, known: dict[str, str]) -> "Pulled":
        """Make a trial's folder as its register says, without the objects that are gone.

        A result is the first that goes, and the last that comes: it says that the rest stays.
        """
        missing = []
        wanted = {
            name: file
            for name, file in seen.register.files.items()
            if not name.endswith(WEIGHTS) and not name.startswith(ARCHIVED)
        }
        there = {*names_in(folder)}
        for name in sorted(there - {*wanted}, key=_result_first):
            (folder / name).unlink(missing_ok=True)
        for name in sorted(wanted, key=_result_first, reverse=True):
            file = wanted[name]
            if "text" in file or known.get(name) != file["key"] or name not in there:
                try:
                    fetch(self.bucket, file, folder / name)
                except Torn:
                    missing.append(Damaged(Path(file["key"]), TORN))
                except FileNotFoundError:
                    missing.append(Damaged(Path(file["key"]), GONE))
        if seen.register.holder is not None:
            self._date(folder / seen.register.attempt_file, seen)
        return Pulled({name: f["key"] for name, f in wanted.items() if "key" in f}, missing)

    def _date(self, attempt: Path, seen: Seen) -> None:
        """Give the attempt's file the age of the holder's last heartbeat, on the server's clock.

        By that age a folder says whether its holder is stale.
        """
        try:
            age = self.bucket.now() - seen.modified
        except StoreAway:  # who may only read asks for no time
            age = 0.0
        with suppress(FileNotFoundError):
            heard = time.time() - max(0.0, age)
            os.utime(attempt, (heard, heard))

    def _path(self, key: str) -> Path:
        """Return what the copy has of an object: a record of a sweep, or the folder of a trial."""
        return self.path / (key if _is_record(key) else register.objects(_trial_id(key)))

    def _delete(self, key: str) -> None:
        if _is_record(key):
            self._path(key).unlink(missing_ok=True)
        else:
            shutil.rmtree(self._path(key), ignore_errors=True)

    def _read_notes(self) -> dict[str, Note]:
        """Return notes by key: none if the copy is new, or the file damaged or of older code."""
        with suppress(Damaged, OSError, ValueError, TypeError, AttributeError):
            notes = json.loads(content(self.path / NOTES))
            return {key: Note(*note) for key, note in notes.items()}
        return {}


def is_known(key: str) -> bool:
    """Return whether an object is a register, or the record of a sweep."""
    return _is_record(key) or register.trial_of(key) is not None


def _is_record(key: str) -> bool:
    return Path(key).match(f"{SWEEPS}/*.json")


def _trial_id(key: str) -> str:
    return Path(key).stem


def _result_first(name: str) -> bool:
    return name != RESULT
