"""A store that is a bucket of an object store, or a prefix in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

from analysis.objects import register
from analysis.objects.bucket import Bucket, Changed, StoreAway
from analysis.objects.lease import Claim, edit, is_free, see
from analysis.objects.mirror import ARCHIVED, AT_ONCE, Mirror, fetch
from analysis.objects.register import Register
from analysis.objects.working import CHECKPOINT, RESULT, Working
from sweeps.request.expand import Trial
from sweeps.store.again import STAYS
from sweeps.store.look import Look
from sweeps.store.store import Config, Running, Spare, never
from trainer.base.errors import BadInput, LeaseLost
from trainer.base.scratch import scratch
from trainer.base.status import FINAL, Status
from trainer.folder.lease import Held
from trainer.folder.wellformed import Damaged

PROBE = ".probe/"
LIST_EVERY = 2.0
"""Seconds between two listings, by which a driver sees what others have started."""


class ObjectStore:
    """See `Store`."""

    def __init__(self, url: str) -> None:
        self._bucket = Bucket(url)

    @property
    def name(self) -> str:
        """Its URL."""
        return self._bucket.url

    @property
    def folder(self) -> Path:
        """The copy of this machine."""
        return self._mirror.path

    @property
    def _mirror(self) -> Mirror:
        return Mirror(self._bucket)

    def require_usable(self) -> None:
        """Raises BadInput if the store does not answer, or is without conditional writes."""
        try:
            with _probe(self._bucket) as (key, version):
                other = {name: f'"{uuid4().hex}"' for name in version}
                again = partial(self._bucket.create, key, b"twice")
                stale = partial(self._bucket.replace, key, b"stale", _stale(version, other))
                refused = [_refuses(request) for request in (again, stale)]
        except StoreAway as error:
            why = str(error).partition(": ")[2]
            raise BadInput("results", self.name, f"cannot be written: {why}") from None
        if not all(refused):
            allowed = "must be of a provider with conditional writes (create if absent, replace if "
            raise BadInput("results", self.name, f"{allowed}the etag matches): an object was lost")

    def pull(self) -> None:
        """See `Store`."""
        self._mirror.pull()

    def push(self, *paths: Path) -> None:
        """See `Store`."""
        files = [file for path in paths for file in _files(path)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in pool.map(self._push, files):
                pass

    def _push(self, path: Path) -> None:
        with suppress(FileNotFoundError):  # another process makes the report anew
            content = path.read_bytes()
            self._bucket.upload(str(path.relative_to(self.folder)), content)

    def trials(self) -> Registers:
        """See `Store`."""
        return Registers(self._bucket)

    @contextmanager
    def running(self, config: Config, trial_id: str) -> Iterator[Running]:
        """The trial runs in a folder of its own, which is deleted after."""
        with scratch(self.folder.parent / "work", "trial-") as folder:
            seen = see(self._bucket, trial_id)
            here = {**config, "out": str(folder)}
            if seen is not None and _status(seen.register) in FINAL:
                fetch(self._bucket, seen.register.files[RESULT], folder / RESULT)
                yield Running(here, never)
                return
            if not is_free(self._bucket, seen):
                raise Held("trial", trial_id, "another process runs this trial")
            claim = Claim(self._bucket, seen, trial_id)
            asked = {**config, "results": self.name, "out": None}
            working = Working(self._bucket, claim, folder, asked)
            with _given_back(claim, working):
                yield Running(here, claim.is_lost)

    def archive(self, trial: Trial) -> ArchivedFiles:
        """See `Store`."""
        return ArchivedFiles(self._bucket, trial.plan.trial_id)

    def spare(self, folders: Sequence[Path]) -> Iterator[Spare]:
        """Also what no register names: uploads of processes that were killed or taken over."""
        there: dict[str, dict[str, int]] = {}
        for one in self._bucket.list("trials"):
            there.setdefault(one.key.split("/")[1], {})[one.key] = one.size
        for folder in folders:
            seen = see(self._bucket, folder.name) if folder.name in there else None
            if seen is None or not is_free(self._bucket, seen):
                continue
            sizes, kept = there[folder.name], _without_checkpoints(seen.register).keys
            if spare := {key: size for key, size in sizes.items() if key not in kept}:
                delete = partial(self._drop, folder.name, [*spare])
                yield Spare(len(spare), sum(spare.values()), delete)

    def _drop(self, trial_id: str, keys: Sequence[str]) -> None:
        if edit(self._bucket, trial_id, _without_checkpoints):
            self._bucket.delete(keys)

    @contextmanager
    def probe(self) -> Iterator[Callable[[], bool]]:
        """A machine that sees this store can read an object of it, and fails to create it."""
        with _probe(self._bucket) as (key, _):
            yield partial(_sees, self._bucket, key)


class Registers:
    """The trials of an object store: see `Trials`."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._trials: dict[str, Trial] = {}
        self._started: set[str] = set()
        self._listed_at = -LIST_EVERY

    def __getitem__(self, trial_id: str) -> Trial:
        return self._trials[trial_id]

    def add(self, trial: Trial) -> None:
        """See `Trials`."""
        self._trials[trial.plan.trial_id] = trial

    def started(self) -> set[str]:
        """See `Trials`. What has started since the last listing is found out by its claim."""
        if monotonic() - self._listed_at > LIST_EVERY:
            with suppress(StoreAway, FileNotFoundError):  # it may be away for a moment
                listed = {Path(one.key).stem for one in self._bucket.list(register.FOLDER)}
                self._started = listed & self._trials.keys()
            self._listed_at = monotonic()
        return self._started

    def look(self, trial_id: str) -> Look:
        """See `Trials`: one request, and three in a minute for the time."""
        try:
            seen = see(self._bucket, trial_id)
            if seen is not None and _status(seen.register) in FINAL:
                return Look.ENDED
            return Look.FREE if is_free(self._bucket, seen) else Look.HELD
        except (StoreAway, Damaged):
            return Look.HELD


class ArchivedFiles:
    """The output of a finished trial, under names in `earlier-<n>/`; no object moves."""

    def __init__(self, bucket: Bucket, trial_id: str) -> None:
        self._bucket, self._trial_id = bucket, trial_id
        self._num_attempts, self._files = -1, dict[str, Any]()
        edit(bucket, trial_id, self._put_aside)

    def _put_aside(self, now: Register) -> Register | None:
        if RESULT not in now.files:
            return None
        self._num_attempts, self._files = now.attempt, dict(now.files)
        earlier = {name.split("/")[0] for name in now.files if name.startswith(ARCHIVED)}
        archive = f"{ARCHIVED}{1 + len(earlier):06d}"
        moved = {name: self._moved(name, archive) for name in now.files}
        return replace(now, files={moved[name]: file for name, file in now.files.items()})

    def _moved(self, name: str, archive: str) -> str:
        top = Path(name.split("/", maxsplit=1)[0])
        stays = any(top.match(pattern) for pattern in STAYS) and name != RESULT
        return name if stays else f"{archive}/{name}"

    def restore_unless_started(self) -> None:
        """See `Archived`."""
        edit(self._bucket, self._trial_id, self._back)

    def _back(self, now: Register) -> Register | None:
        return replace(now, files=self._files) if now.attempt == self._num_attempts else None


@contextmanager
def _given_back(claim: Claim, working: Working) -> Iterator[None]:
    """Holds the trial while the context lasts, with what was there before it, and what is made."""
    with claim.heartbeat():
        try:
            working.fetch()
        except BaseException as error:
            with suppress(LeaseLost, StoreAway):
                working.abandon(type(error).__name__)
            raise
        try:
            with working.pushed():
                yield
        except BaseException as error:
            if claim.is_lost():
                raise LeaseLost("the trial was, or may be, taken over") from error
            working.give_back(type(error).__name__)
            raise
        working.give_back(Status.FAILED)


@contextmanager
def _probe(bucket: Bucket) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the key and the version of a new object, which is deleted afterwards."""
    key = f"{PROBE}{uuid4().hex}"
    version = bucket.create(key, b"probe")
    try:
        yield key, version
    finally:
        bucket.delete([key])


def _sees(bucket: Bucket, key: str) -> bool:
    try:
        return bucket.read(key).content == b"probe" and _refuses(partial(bucket.create, key, b""))
    except FileNotFoundError:
        return False


def _refuses(request: Callable[[], object]) -> bool:
    try:
        request()
    except Changed:
        return True
    return False


def _stale(version: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """A version that the object never had; a generation is a number."""
    return {**other, **({"version": "1"} if "version" in version else {})}


def _status(now: Register) -> str | None:
    result = now.text(RESULT)
    return None if result is None else result.get("status")


def _without_checkpoints(now: Register) -> Register:
    kept = {name: file for name, file in now.files.items() if not name.startswith(CHECKPOINT)}
    return replace(now, files=kept)


def _files(path: Path) -> Iterator[Path]:
    found = [path] if path.is_file() else sorted(path.rglob("*"))
    return (file for file in found if file.is_file() and not file.name.endswith(".partial"))
