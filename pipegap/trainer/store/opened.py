"""The store that a word of a command names: a folder that machines share, or a bucket.

A bucket, or a prefix in it, holds a store of files: the keys of its objects are the paths of files.
Commands read a copy on this machine. A trial runs in a folder of its own, whose files are uploaded
in an order in which the trial can go on whenever its process is killed: see `Upload`.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, flock
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

from pipegap.trainer.base.atomic import write_atomically
from pipegap.trainer.base.children import repeated, scratch
from pipegap.trainer.base.errors import BadInput, LeaseLost
from pipegap.trainer.base.places import cache_folder, is_url, require_folder
from pipegap.trainer.folder import wellformed
from pipegap.trainer.folder.lease import NAME, PATTERN, read
from pipegap.trainer.folder.wellformed import MARKER, RESULT, final, read_result
from pipegap.trainer.store import driver
from pipegap.trainer.store.bucket import (
    ENDPOINTS,
    BucketClient,
    Changed,
    Meta,
    StoreAway,
    StoreRefuses,
)
from pipegap.trainer.store.files import FileStore
from pipegap.trainer.store.store import (
    ARCHIVED,
    Config,
    RunningTrial,
    Spare,
    Stored,
    SweepStore,
    TrialState,
    stays,
)

TRIALS, SWEEPS, FORMER = "trials", "sweeps", "registers"
"""Folders of a store; the last one has a store of version 0.3.0 in a bucket."""
CONFIG, METRICS, CHECKPOINTS = "config.json", "metrics.jsonl", "checkpoint-*.pt"
ORDER = (CONFIG, MARKER, PATTERN, METRICS, CHECKPOINTS)
"""Patterns of the files that are uploaded first, in this order: which trial it is and who runs it,
the rows, and the checkpoint, which is of no use without its rows. Other files follow."""
WEIGHTS, NOT_RESUMED = (".pt", ".safetensors"), (".safetensors",)
"""Endings of files that no command reads from the copy, and that no attempt at a trial reads."""
GROWTH = 1.2
"""How much longer the rows are when they are uploaded again without a new checkpoint: all uploads
together then are at most six times their size."""
UPLOAD_EVERY = 10.0
"""Seconds between two uploads of what is new."""
TRY_EVERY, TRY_FOR = 1.0, 600.0
"""Seconds between two tries of a trial's last upload, and after which it has failed for good."""
AT_ONCE = 32
"""Requests at a time."""
NOTES = ".listed.json"
"""The file of the copy that says which content of each object it has."""

Note = list[Any]
"""The etag of an object, empty if its content has to be fetched again, and when it was written, by
the server's clock."""
Stamp = tuple[int, int, int]
"""Inode, time in nanoseconds and size of a file."""


def open_store(word: str) -> SweepStore:
    """Return the store `word`, a folder or the URL of a bucket; raises BadInput.

    Asks nothing of the store yet.
    """
    if is_url(word):
        return BucketStore(word)
    require_folder("results", word)
    return FileStore(Path(word))


def local_folder(word: str | Path) -> Path:
    """Return the folder in which this machine reads the store `word`. It need not exist.

    May also be a report's table of trials, a CSV. Raises BadInput for what can be no store.
    """
    if is_url(str(word)):
        return BucketStore(str(word)).folder
    require_folder("results", str(word), or_file=".csv")
    return Path(word)


def pulled(word: str | Path) -> Path:
    """Return that folder with what the store has now. Raises StoreAway if it does not answer."""
    if is_url(str(word)):
        BucketStore(str(word)).pull()
    return local_folder(word)


class BucketStore:
    """A `SweepStore` in a bucket, read in a copy on this machine.

    The copy is derived: it may be deleted at any time, and what is changed in it reaches the bucket
    by `push` alone.
    """

    def __init__(self, url: str) -> None:
        self._bucket = BucketClient(url)
        self._driver = ""
        """The token of the driver that this process is, or works for."""

    @property
    def name(self) -> str:
        """Its URL."""
        return self._bucket.url

    @property
    def folder(self) -> Path:
        """The copy of this machine. At another endpoint the same URL is another bucket."""
        address = [self.name, *(os.environ.get(name, "") for name in ENDPOINTS)]
        digest = hashlib.sha256(json.dumps(address).encode()).hexdigest()[:16]
        return cache_folder() / "stores" / digest / "copy"

    def require_usable(self) -> None:
        """Do nothing: `driven` finds out what cannot be written."""

    @contextmanager
    def driven(self) -> Iterator[None]:
        """Drive the prefix. Raises BadInput if another driver does: see `driver.driving`."""
        with driver.driving(self._bucket) as self._driver:
            yield

    def pull(self) -> None:
        """Fetch what changed since the last pull: a request for each 1,000 objects, which are
        listed again where a trial has ended, and one for each object that changed.

        Raises StoreAway, and BadInput for a store of version 0.3.0, or if this machine has no place
        for the copy.
        """
        self._pull(TRIALS, SWEEPS)

    def _pull(self, *folders: str) -> None:
        try:
            (self.folder / TRIALS).mkdir(parents=True, exist_ok=True)
            with (self.folder / ".lock").open("w", encoding="utf-8") as lock:
                flock(lock, LOCK_EX)  # one process at a time writes the copy
                self._update(folders)
        except OSError as error:
            allowed = f"must be a folder that can be written ({error.strerror})"
            raise BadInput("XDG_CACHE_HOME", self.folder, allowed) from None

    def _update(self, folders: Sequence[str]) -> None:
        """Make the copy of these folders as the bucket is."""
        notes_before = self._notes()
        if not notes_before and self._bucket.list(FORMER):
            allowed = (
                f"is a store of version 0.3.0: `pipegap list results={self.name}` of that version "
                f"copies it to {self.folder}: bring that to a new prefix by `aws s3 sync`"
            )
            raise BadInput("results", self.name, allowed)
        metas = self._listed(folders)
        results = {key: meta.e_tag for key, meta in metas.items() if _is_result(key)}
        if any(e_tag != notes_before.get(key, [""])[0] for key, e_tag in results.items()):
            # The first pages of a long listing may be older than a result in its last. What is
            # listed once a result is there is all that belongs to it.
            metas = {
                key: meta
                for key, meta in self._listed(folders).items()
                if not _is_result(key) or meta.e_tag == results.get(key)
            }
        notes = dict(notes_before)
        in_folders = tuple(f"{folder}/" for folder in folders)
        outdated = {key for key in notes if key.startswith(in_folders) and key not in metas}
        # A result that was replaced is deleted first: the copy has none while the rest is fetched.
        outdated |= {key for key, e_tag in results.items() if notes.get(key, [e_tag])[0] != e_tag}
        for key in sorted(outdated, key=_is_result, reverse=True):
            del notes[key]
            (self.folder / key).unlink(missing_ok=True)
            with suppress(OSError):  # it holds other files
                (self.folder / key).parent.rmdir()
        changed: dict[str, list[Meta]] = {}
        for key, meta in metas.items():
            if notes.get(key) != _note(meta):
                changed.setdefault(_trial_of(key), []).append(meta)
        names = (Path(meta.key).name for trial in changed.values() for meta in trial)
        # Without an attempt there is no heartbeat, and the server's time need not be asked for.
        seconds_ahead = self._seconds_ahead() if any(map(_is_attempt, names)) else 0.0
        with ThreadPoolExecutor(AT_ONCE) as pool:
            fetch = partial(self._fetch, notes, seconds_ahead)
            for notes_of_trial in [*pool.map(fetch, changed.values())]:  # all read the old `notes`
                notes |= notes_of_trial
        if notes != notes_before:
            write_atomically(self.folder / NOTES, json.dumps(notes).encode())

    def _fetch(
        self, notes: Mapping[str, Note], seconds_ahead: float, metas: Sequence[Meta]
    ) -> dict[str, Note]:
        """Bring files of a trial up to date, the result last, which says that the rest stays;
        return their notes."""
        new_notes: dict[str, Note] = {}
        for meta in sorted(metas, key=lambda meta: _is_result(meta.key)):
            path = self.folder / meta.key
            is_here = notes.get(meta.key, [""])[0] == meta.e_tag
            if not is_here and not _downloaded(self._bucket, meta, path):
                # It changed since the listing. An empty etag has the next pull fetch it again, and
                # this one leaves out the files after it, the result above all.
                return {**new_notes, meta.key: ["", 0.0]}
            if NAME.fullmatch(path.name):  # written again at each heartbeat, whose age a holder has
                with suppress(FileNotFoundError):
                    os.utime(path, (meta.modified + seconds_ahead,) * 2)
            new_notes[meta.key] = _note(meta)
        return new_notes

    def _seconds_ahead(self) -> float:
        """Return how far the clock of this machine is ahead of the server's; 0 for a user who may
        only read."""
        with suppress(StoreAway):
            return time.time() - self._bucket.now()
        return 0.0

    def _listed(self, folders: Sequence[str]) -> dict[str, Meta]:
        """Return the objects that commands read, by their keys."""
        metas = [meta for folder in folders for meta in self._bucket.list(folder)]
        marked_folders = {meta.key.rpartition("/")[0] for meta in metas}  # by a console
        return {
            meta.key: meta
            for meta in metas
            if meta.key not in marked_folders and _is_read(meta.key, WEIGHTS)
        }

    def _notes(self) -> dict[str, Note]:
        """Return notes by key: none if the copy is new, or the file damaged."""
        with suppress(BadInput, OSError, ValueError, TypeError, AttributeError):
            notes = json.loads(wellformed.content(self.folder / NOTES))
            return {key: [str(e_tag), float(time)] for key, (e_tag, time) in notes.items()}
        return {}

    def push(self, *paths: Path) -> None:
        """Upload these files of the copy, and the files of folders in it."""
        files = [file for path in paths for file in _files(path)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in pool.map(self._push, files):
                pass

    def _push(self, path: Path) -> None:
        with suppress(FileNotFoundError):  # another process makes the report anew
            self._bucket.upload(str(path.relative_to(self.folder)), path.read_bytes())

    def started(self, trials: Mapping[str, Stored]) -> set[str]:
        """Return the ids of the trials that the store had at the last pull."""
        return FileStore(self.folder).started(trials)

    def state_of(self, trial: Stored) -> TrialState:
        """Return what the trial's folder says: one request. Nobody but this driver runs trials."""
        try:
            self._pull(f"{TRIALS}/{trial.trial_id}")
        except StoreAway:
            return TrialState.HELD
        state = FileStore(self.folder).state_of(trial)
        # HELD is what the copy says of a process of a driver before this one.
        return TrialState.FREE if state == TrialState.HELD else state

    @contextmanager
    def running(self, config: Config, trial_id: str) -> Iterator[RunningTrial]:
        """Yield the trial. It runs in a folder of its own, which is deleted after."""
        if not driver.drives(self._bucket, self._driver):
            raise LeaseLost(f"{self.name} has another driver")
        with scratch(self.folder.parent / "work", "trial-") as folder:
            config_here = {**config, "out": str(folder)}
            config_stored = {**config, "results": self.name, "out": None}
            upload = Upload(self._bucket, f"{TRIALS}/{trial_id}", folder, config_stored)
            upload.fetch()
            if final(read_result(folder)) is not None:
                yield RunningTrial(config_here)
                return
            with upload.repeated():
                yield RunningTrial(config_here, upload.is_lost)

    def archive(self, trial: Stored) -> Callable[[], None]:
        """Move the output to `earlier-<n>/` in the trial's folder. The result goes first: without
        it the trial runs again, whatever is left."""
        names = self._names(trial)
        num_attempts = sum(map(_is_attempt, names))
        earlier = {name.split("/")[0] for name in names if name.startswith(ARCHIVED)}
        archive = f"{ARCHIVED}{1 + len(earlier):06d}"
        moved = [name for name in names if not stays(name)]
        self._move(trial, {name: f"{archive}/{name}" for name in moved})

        def restore() -> None:
            if sum(map(_is_attempt, self._names(trial))) == num_attempts:
                self._move(trial, {f"{archive}/{name}": name for name in moved})

        return restore

    def _names(self, trial: Stored) -> list[str]:
        """Return the files of a trial's folder by their paths in it."""
        folder = f"{TRIALS}/{trial.trial_id}"
        return [meta.key.removeprefix(f"{folder}/") for meta in self._bucket.list(folder)]

    def _move(self, trial: Stored, names: Mapping[str, str]) -> None:
        """Give files of a trial's folder the names to which theirs are mapped: of the new ones the
        result is the last that comes, of the old ones the first that goes."""
        folder = f"{TRIALS}/{trial.trial_id}"
        for name in sorted(names, key=_is_result):
            self._bucket.copy(f"{folder}/{name}", f"{folder}/{names[name]}")
        for name in sorted(names, key=_is_result, reverse=True):
            self._bucket.delete([f"{folder}/{name}"])

    def spare(self, folders: Sequence[Path]) -> Iterator[Spare]:
        """Yield the checkpoints of each trial."""
        sizes: dict[str, dict[str, int]] = {}
        for meta in self._bucket.list(TRIALS):
            if Path(meta.key).match(f"{TRIALS}/*/{CHECKPOINTS}"):
                sizes.setdefault(_trial_of(meta.key), {})[meta.key] = meta.size
        for folder in folders:
            if size_of_key := sizes.get(f"{TRIALS}/{folder.name}"):
                delete = partial(self._bucket.delete, [*size_of_key])
                yield Spare(len(size_of_key), sum(size_of_key.values()), delete)

    @contextmanager
    def probe(self) -> Iterator[Callable[[], bool]]:
        """A machine that sees this store sees who drives it."""
        yield partial(driver.drives, self._bucket, self._driver)


class Upload:
    """The folder `path` in which a trial is trained, and what of it the bucket has below `prefix`.

    Whoever fetches these objects goes on from the newest checkpoint that was uploaded, whenever
    this process is killed, and finds no result without all that belongs to it: files come in ORDER,
    what the folder lacks goes after, and the result comes once a listing shows all other files.

    A trial is that of its newest attempt. A process that was taken over finds the file of a newer
    one, and stops. It may be about to write just then: each write names the content in whose place
    it comes, and so does nothing once the newer attempt has written. Weights alone are written
    unseen: the names of checkpoints say attempt and digest, and other weights are equal.

    `config` is what the bucket has of the trial's config: it names no folder of this machine.
    """

    def __init__(
        self, bucket: BucketClient, prefix: str, path: Path, config: Mapping[str, Any]
    ) -> None:
        self._bucket, self._prefix, self._path = bucket, prefix, path
        self._config = f"{json.dumps(config, indent=1)}\n".encode()
        self._stamps: dict[str, Stamp] = {}
        self._etags: dict[str, str] = {}
        """What a file was like here when it was fetched or uploaded, and the etag of its object."""
        self._attempt_before = ""
        """The file of the newest attempt that was fetched."""
        self._is_lost = False

    def is_lost(self) -> bool:
        """Return whether another process has the trial: this one must stop."""
        return self._is_lost

    def fetch(self) -> None:
        """Fetch what an attempt at the trial reads; of a finished trial the result alone."""
        metas = {meta.key: meta for meta in self._bucket.list(self._prefix)}
        for key in sorted(metas, key=_is_result, reverse=True):
            if not _is_read(key, NOT_RESUMED):
                continue
            name = key.removeprefix(f"{self._prefix}/")
            path = self._path / name
            if not _downloaded(self._bucket, metas[key], path):
                says = f"{key} is gone or was replaced: its trial goes on without {name}"
                print(says, file=sys.stderr)
                continue
            if _is_attempt(name):  # of a process that does not hold the folder here
                os.utime(path, (0, 0))
                self._attempt_before = max(self._attempt_before, name)
            self._stamps[name], self._etags[name] = _stamp(path), metas[key].e_tag
            if name == RESULT and final(read_result(self._path)) is not None:
                return

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Upload what is new while the context lasts, and all at its end.

        While the store is away the trial goes on. Raises LeaseLost if another process has it.
        """
        try:
            with repeated(self._push_new, UPLOAD_EVERY, "upload"):
                yield
        except BaseException as error:
            if self._is_lost:
                raise LeaseLost("another process has the trial") from error
            self._push_all()
            raise
        self._push_all()

    def _push_new(self) -> bool:
        """Upload what is new; return whether to go on."""
        try:
            self._push()
        except LeaseLost:
            self._is_lost = True
        except (StoreAway, Changed, OSError):  # a file went, as old checkpoints do: later
            pass
        return not self._is_lost

    def _push_all(self) -> None:
        """Upload the folder, which does not change any more.

        Tries again while the store is away. Raises LeaseLost, and StoreAway in the end.
        """
        deadline = monotonic() + TRY_FOR
        while True:
            try:
                while self._push(is_end=True):
                    pass
                return
            except StoreRefuses:
                raise
            except (StoreAway, Changed) as error:
                if monotonic() > deadline:
                    raise StoreAway(str(error)) from error
                time.sleep(TRY_EVERY)

    def _push(self, is_end: bool = False) -> bool:
        """Upload what the bucket lacks, and delete what the folder lacks; return whether at the end
        the result waits.

        Raises LeaseLost, StoreAway, Changed if another process wrote an object meanwhile, and
        FileNotFoundError if a file goes meanwhile.
        """
        stamps = {name: _stamp(self._path / name) for name in _names_in(self._path)}
        has_checkpoint = any(fnmatch(name, CHECKPOINTS) for name in stamps)
        etags = {
            meta.key.removeprefix(f"{self._prefix}/"): meta.e_tag
            for meta in self._bucket.list(self._prefix)
        }
        if not self._is_begun(max(filter(_is_attempt, stamps), default=""), etags):
            return False
        if etags.get(RESULT) not in (None, self._etags.get(RESULT)):
            # Of an attempt before this one, which finished when this one had written already.
            self._bucket.delete([f"{self._prefix}/{RESULT}"])
            del etags[RESULT]
        due = {
            name
            for name, stamp in stamps.items()
            if (stamp, etags.get(name)) != (self._stamps.get(name), self._etags.get(name))
        }
        waits = is_end and RESULT in due and len(due) > 1
        if waits or not is_end:
            due.discard(RESULT)
        # Rows alone wait until there are many more: an object is written as a whole each time.
        needs_rows = is_end or any(fnmatch(name, CHECKPOINTS) for name in due)
        if METRICS in due & etags.keys() and etags[METRICS] == self._etags.get(METRICS):
            size = self._stamps[METRICS][2]
            if not needs_rows and size <= stamps[METRICS][2] < GROWTH * size:
                due.remove(METRICS)
        for name in sorted(due, key=_order):
            self._etags[name] = self._write(name, etags.get(name))
            self._stamps[name] = stamps[name]
        # While the trial runs, a list of its files may lack a checkpoint that is renamed just then,
        # or has just replaced another: none is deleted because there seems to be none.
        if has_checkpoint or (is_end and not waits):
            gone = {name for name in etags if name in self._etags or fnmatch(name, CHECKPOINTS)}
            self._bucket.delete([f"{self._prefix}/{name}" for name in gone - stamps.keys()])
        return waits

    def _is_begun(self, attempt: str, etags: Mapping[str, str]) -> bool:
        """Return whether the newest attempt here, of which this is the file, has begun here.

        Raises LeaseLost if another process has taken the trial over, or finished it before.
        """
        if attempt <= self._attempt_before:  # not yet, or the folder was deleted
            return False
        newest = max(filter(_is_attempt, etags), default="")
        if newest == attempt:
            is_lost = etags[newest] != self._etags.get(newest) and not self._has_written(newest)
        else:
            is_finished = etags.get(RESULT) not in (None, self._etags.get(RESULT))
            is_lost = newest > attempt or is_finished
        if is_lost:
            raise LeaseLost(f"{self._prefix} was taken over by another process")
        return True

    def _has_written(self, attempt: str) -> bool:
        """Return whether this process wrote the object of an attempt, and never got the answer."""
        try:
            content = self._bucket.read(f"{self._prefix}/{attempt}").content
            stored = wellformed.parse(content, wellformed.ATTEMPT)
        except (FileNotFoundError, ValueError):
            return False
        return stored.get("started_at") == read(self._path / attempt).get("started_at")

    def _write(self, name: str, etag_before: str | None) -> str:
        """Write an object; return its etag."""
        key, path = f"{self._prefix}/{name}", self._path / name
        if name.endswith(WEIGHTS):
            with path.open("rb") as file:
                return self._bucket.upload(key, file)["e_tag"]
        version_before = {"e_tag": etag_before} if etag_before else None
        whole = self._config if name == CONFIG else path.read_bytes()
        return self._bucket.write(key, whole, version_before)["e_tag"]


def _downloaded(bucket: BucketClient, meta: Meta, path: Path) -> bool:
    """Replace a file at once; return whether the object still has the content that was listed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial_path = path.with_name(f".{uuid4().hex}.partial")
    try:
        bucket.download(meta, partial_path)
        partial_path.replace(path)
    except (FileNotFoundError, Changed):
        return False
    finally:
        partial_path.unlink(missing_ok=True)
    return True


def _order(name: str) -> tuple[int, str]:
    rank = next((i for i, pattern in enumerate(ORDER) if fnmatch(name, pattern)), len(ORDER))
    return rank, name


def _stamp(path: Path) -> Stamp:
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _names_in(folder: Path) -> Iterator[str]:
    """Yield the files below a folder by their paths in it, but for hidden ones."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return (str(path) for path in paths if not any(part.startswith(".") for part in path.parts))


def _is_attempt(name: str) -> bool:
    return NAME.fullmatch(name) is not None


def _note(meta: Meta) -> Note:
    return [meta.e_tag, meta.modified]


def _is_result(key: str) -> bool:
    return key.rpartition("/")[2] == RESULT


def _trial_of(key: str) -> str:
    """Return the folder of the trial that an object belongs to."""
    return "/".join(key.split("/")[:2])


def _is_read(key: str, endings: tuple[str, ...]) -> bool:
    """Return whether an object is the record of a sweep, or a file of a trial without one of these
    endings, and not of an earlier run."""
    top, *names = key.split("/")
    if any(name.startswith(".") for name in names) or key.endswith(endings):
        return False
    return top == SWEEPS or (len(names) > 1 and not names[1].startswith(ARCHIVED))


def _files(path: Path) -> Iterator[Path]:
    paths = [path] if path.is_file() else sorted(path.rglob("*"))
    return (file for file in paths if file.is_file() and not file.name.endswith(".partial"))
