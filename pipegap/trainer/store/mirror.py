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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any, NamedTuple

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import cache_folder
from pipegap.trainer.folder.wellformed import Damaged, content, said
from pipegap.trainer.store import driver, register
from pipegap.trainer.store.bucket import ENDPOINTS, BucketClient, StoreAway
from pipegap.trainer.store.register import (
    ARCHIVED,
    RESULT,
    Register,
    fetch,
    names_in,
    see,
    write,
)

WEIGHTS = (".pt", ".safetensors")
"""Endings of files that only a trial that goes on fetches."""
AT_ONCE = 32
"""Requests at a time."""
TRIES = 5
"""How often a register is read again because what it named was replaced meanwhile."""
SWEEPS = "sweeps"
"""The folder whose objects have no register: records of sweeps, which are written as a whole."""
AGAIN = "delete what is damaged, and its trial runs again with its sweep"
GONE = "is gone or not whole, though the register of its trial names it"
NOT_OURS = "is no object of a store: move it away"
NOTES = ".pulled.json"
"""The file of the copy that says what it has."""


class Note(NamedTuple):
    """What the copy has of a register, or of a record of a sweep."""

    e_tag: str = ""
    """Empty if what the object says is damaged: it is looked at again by the next pull."""
    keys: Mapping[str, str] = {}
    """Files that the register names with an object of their own → its key."""
    attempt: str = ""
    """The newest attempt's file."""
    driver: str = ""
    """The token of the driver whose worker holds the trial; empty if none does."""


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
        self._damaged: list[Damaged] = []

    def pull(self) -> None:
        """Fetch what changed: one request for each 1,000 trials, one or two for each that did, and
        four for the age of the driver's last sign, if trials run.

        Warns of what is damaged, or out of place. Raises StoreAway, and BadInput if this machine
        has no place for the copy.
        """
        self._damaged = []
        try:
            (self.path / "trials").mkdir(parents=True, exist_ok=True)
            with (self.path / ".lock").open("w", encoding="utf-8") as lock:
                flock(lock, LOCK_EX)  # one process at a time writes the copy
                self._pull()
        except OSError as error:
            allowed = f"must be a folder that can be written ({error.strerror})"
            raise BadInput("XDG_CACHE_HOME", self.path, allowed) from None
        if self._damaged:
            warnings.warn(
                f"left out: {said(sorted(self._damaged, key=str))}: {AGAIN}", stacklevel=2
            )

    def _pull(self) -> None:
        notes_before = self._read_notes()
        metas = [m for folder in (register.FOLDER, SWEEPS) for m in self.bucket.list(folder)]
        tag_of_key = {meta.key: meta.e_tag for meta in metas if _is_known(meta.key)}
        for gone in notes_before.keys() - tag_of_key.keys():
            if _is_record(gone):
                self._path(gone).unlink(missing_ok=True)
            else:
                shutil.rmtree(self._path(gone), ignore_errors=True)
        notes = {key: notes_before.get(key, Note()) for key in tag_of_key}
        changed = [key for key, e_tag in tag_of_key.items() if notes[key].e_tag != e_tag]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            updated = pool.map(lambda key: self._update(key, tag_of_key[key], notes[key]), changed)
            notes |= zip(changed, updated, strict=True)
        if notes != notes_before:
            write(self.path / NOTES, json.dumps(notes).encode())
        self._date(notes)
        for meta in metas:
            if not _is_known(meta.key) and meta.size:  # an empty one marks a console's folder
                self._damaged.append(Damaged(Path(meta.key), NOT_OURS))

    def _update(self, key: str, e_tag: str, note: Note) -> Note:
        """Bring the copy up to date with the object `key`; return its note.

        What a damaged register said before stays.
        """
        try:
            if not _is_record(key):
                return self._update_trial(Path(key).stem, e_tag, note.keys)
            write(self.path / key, self.bucket.read(key).content)
        except FileNotFoundError:  # the next pull sees that it is gone
            return note._replace(e_tag="")
        except Damaged as error:
            self._damaged.append(error)
            return note._replace(e_tag="")
        return Note(e_tag)

    def _update_trial(self, trial_id: str, e_tag: str, etags: Mapping[str, str]) -> Note:
        """Make a trial's folder as its register says, without the objects that are gone."""
        for _ in range(TRIES):
            register_now = see(self.bucket, trial_id).register
            missing = self._fill(self.path / register.objects(trial_id), register_now, etags)
            if not missing or see(self.bucket, trial_id).register == register_now:
                self._damaged += missing
                keys = {
                    name: file["key"]
                    for name, file in _wanted(register_now).items()
                    if "key" in file
                }
                held_by = (register_now.holder or {}).get("driver", "")
                return Note("" if missing else e_tag, keys, register_now.newest_attempt, held_by)
        changes = f"{register.key(trial_id)} changes too often to be read"
        raise StoreAway(f"results={self.bucket.url}: {changes}")

    def _fill(
        self, folder: Path, register_now: Register, etags: Mapping[str, str]
    ) -> Sequence[Damaged]:
        """Return what is missing. `etags`: the keys of the note before.

        A result is the first that goes, and the last that comes: it says that the rest stays.
        """
        missing, files_wanted, files_here = [], _wanted(register_now), {*names_in(folder)}
        for name in sorted(files_here - {*files_wanted}, key=_result_first):
            (folder / name).unlink(missing_ok=True)
        for name in sorted(files_wanted, key=_result_first, reverse=True):
            file = files_wanted[name]
            if "text" in file or etags.get(name) != file["key"] or name not in files_here:
                try:
                    fetch(self.bucket, file, folder / name)
                except FileNotFoundError:
                    missing.append(Damaged(Path(file["key"]), GONE))
        with suppress(OSError):  # without an end it would seem to be of a process that runs
            os.utime(folder / register_now.newest_attempt, (0, 0))
        return missing

    def _date(self, notes: Mapping[str, Note]) -> None:
        """Give the files of attempts whose driver lives the age of its last sign.

        By that age a folder says whether its holder is stale.
        """
        notes_of_drivers = {key: note for key, note in notes.items() if note.driver}
        driver_now = driver.current(self.bucket) if notes_of_drivers else None
        for key, note in notes_of_drivers.items():
            is_driven = driver_now is not None and note.driver == driver_now.token
            heard = time.time() - max(0.0, driver_now.age) if driver_now and is_driven else 0.0
            with suppress(OSError):
                os.utime(self._path(key) / note.attempt, (heard, heard))

    def _path(self, key: str) -> Path:
        """Return what the copy has of an object: a record of a sweep, or the folder of a trial."""
        return self.path / (key if _is_record(key) else register.objects(Path(key).stem))

    def _read_notes(self) -> dict[str, Note]:
        """Return notes by key: none if the copy is new, or the file damaged or of older code."""
        with suppress(Damaged, OSError, ValueError, TypeError, AttributeError):
            notes = json.loads(content(self.path / NOTES))
            return {key: Note(*note) for key, note in notes.items()}
        return {}


def _wanted(register_now: Register) -> dict[str, Any]:
    """Return the files of a register that commands read."""
    return {
        name: file
        for name, file in register_now.files.items()
        if not name.endswith(WEIGHTS) and not name.startswith(ARCHIVED)
    }


def _is_known(key: str) -> bool:
    """Return whether an object is a register, or the record of a sweep."""
    return _is_record(key) or register.trial_of(key) is not None


def _is_record(key: str) -> bool:
    return Path(key).match(f"{SWEEPS}/*.json") and register.is_path(key)


def _result_first(name: str) -> bool:
    return name != RESULT
