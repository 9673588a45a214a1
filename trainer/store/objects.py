"""A store that is a bucket of an object store, or a prefix in it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from uuid import uuid4

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.scratch import scratch
from pipegap.trainer.base.status import FINAL
from pipegap.trainer.folder.lease import Held
from pipegap.trainer.folder.wellformed import Damaged
from pipegap.trainer.store import register
from pipegap.trainer.store.bucket import BucketClient, Changed, StoreAway
from pipegap.trainer.store.lease import RegisterLease, edit, is_free
from pipegap.trainer.store.mirror import AT_ONCE, Mirror
from pipegap.trainer.store.register import ARCHIVED, CHECKPOINT, RESULT, Register, fetch, see
from pipegap.trainer.store.store import STAYS, Config, RunningTrial, Spare, Stored, TrialState
from pipegap.trainer.store.working import WorkingFolder

PROBE = ".probe/"
LIST_EVERY = 2.0
"""Seconds between two listings, by which a driver sees what others have started."""


class ObjectStore:
    """A `SweepStore` in a bucket, read in a copy on this machine."""

    def __init__(self, url: str) -> None:
        self._bucket = BucketClient(url)
        self._listed: set[str] = set()
        self._listed_at = -LIST_EVERY

    @property
    def name(self) -> str:
        """Its URL."""
        return self._bucket.url

    @property
    def folder(self) -> Path:
        """The copy of this machine."""
        return Mirror(self._bucket).path

    def require_usable(self) -> None:
        """Raise BadInput if the store does not answer, or is without conditional writes."""
        try:
            with _probe(self._bucket) as (probe, version):
                # A version that the object never had; a generation is a number.
                other = {key: "1" if key == "version" else f'"{uuid4().hex}"' for key in version}
                again = partial(self._bucket.create, probe, b"twice")
                stale = partial(self._bucket.replace, probe, b"stale", other)
                refused = [_refuses(request) for request in (again, stale)]
        except StoreAway as error:
            why = str(error).partition(": ")[2]
            raise BadInput("results", self.name, f"cannot be written: {why}") from None
        if not all(refused):
            allowed = "must be of a provider with conditional writes (create if absent, replace if "
            raise BadInput("results", self.name, f"{allowed}the etag matches): an object was lost")

    def pull(self) -> None:
        """Fetch what changed since the last pull."""
        Mirror(self._bucket).pull()

    def push(self, *paths: Path) -> None:
        """Upload these files of the copy, and the files of folders in it."""
        files = [file for path in paths for file in _files(path)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in pool.map(self._push, files):
                pass

    def _push(self, path: Path) -> None:
        with suppress(FileNotFoundError):  # another process makes the report anew
            content = path.read_bytes()
            self._bucket.upload(str(path.relative_to(self.folder)), content)

    def started(self, trials: Mapping[str, Stored]) -> set[str]:
        """Return the ids of the trials that had a register at the last listing.

        What has started since then is found out when this process tries to take it.
        """
        if monotonic() - self._listed_at > LIST_EVERY:
            with suppress(StoreAway):  # it may be away for a moment
                self._listed = {Path(m.key).stem for m in self._bucket.list(register.FOLDER)}
            self._listed_at = monotonic()
        return self._listed & trials.keys()

    def state_of(self, trial: Stored) -> TrialState:
        """Return what the register says: one request, and three in a minute for the time."""
        try:
            seen = see(self._bucket, trial.trial_id)
            if seen is not None and seen.register.status in FINAL:
                return TrialState.ENDED
            return TrialState.FREE if is_free(self._bucket, seen) else TrialState.HELD
        except Damaged:
            return TrialState.DAMAGED
        except StoreAway:
            return TrialState.HELD

    @contextmanager
    def running(self, config: Config, trial_id: str) -> Iterator[RunningTrial]:
        """Yield the trial. It runs in a folder of its own, which is deleted after."""
        with scratch(self.folder.parent / "work", "trial-") as folder:
            seen = see(self._bucket, trial_id)
            here = {**config, "out": str(folder)}
            if seen is not None and seen.register.status in FINAL:
                fetch(self._bucket, seen.register.files[RESULT], folder / RESULT)
                yield RunningTrial(here)
                return
            if not is_free(self._bucket, seen):
                raise Held("trial", trial_id, "another process runs this trial")
            lease = RegisterLease(self._bucket, seen, trial_id)
            stored = {**config, "results": self.name, "out": None}
            with WorkingFolder(self._bucket, lease, folder, stored).held():
                yield RunningTrial(here, lease.is_lost)

    def archive(self, trial: Stored) -> Callable[[], object]:
        """Rename the files of the output in the register, to `earlier-<n>/`; no object moves."""
        before: list[Register] = []

        def put_aside(now: Register) -> Register | None:
            archived = _archived(now)
            before[:] = [now] if archived else []
            return archived

        def put_back(now: Register) -> Register | None:
            is_new = not before or now.attempt != before[0].attempt
            return None if is_new else replace(now, files=before[0].files)

        edit(self._bucket, trial.trial_id, put_aside)
        return partial(edit, self._bucket, trial.trial_id, put_back)

    def spare(self, folders: Sequence[Path]) -> Iterator[Spare]:
        """Yield checkpoints, and what no register names: uploads of processes that were killed."""
        there: dict[str, dict[str, int]] = {}
        for meta in self._bucket.list("trials"):
            _, _, below = meta.key.partition("/")
            there.setdefault(below.partition("/")[0], {})[meta.key] = meta.size
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


def _archived(now: Register) -> Register | None:
    """Return the register with its output in a new folder; None without a result."""
    if RESULT not in now.files:
        return None
    earlier = {name.split("/")[0] for name in now.files if name.startswith(ARCHIVED)}
    archive = f"{ARCHIVED}{1 + len(earlier):06d}"
    return replace(now, files={_moved(name, archive): file for name, file in now.files.items()})


def _moved(name: str, archive: str) -> str:
    """Return the name of a file in the folder `archive`, or its own if the file stays."""
    top = Path(name.split("/", maxsplit=1)[0])
    stays = any(top.match(pattern) for pattern in STAYS) and name != RESULT
    return name if stays else f"{archive}/{name}"


@contextmanager
def _probe(bucket: BucketClient) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the key and the version of a new object, which is deleted afterwards."""
    key = f"{PROBE}{uuid4().hex}"
    version = bucket.create(key, b"probe")
    try:
        yield key, version
    finally:
        bucket.delete([key])


def _sees(bucket: BucketClient, key: str) -> bool:
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


def _without_checkpoints(now: Register) -> Register:
    kept = {name: file for name, file in now.files.items() if not name.startswith(CHECKPOINT)}
    return replace(now, files=kept)


def _files(path: Path) -> Iterator[Path]:
    paths = [path] if path.is_file() else sorted(path.rglob("*"))
    return (file for file in paths if file.is_file() and not file.name.endswith(".partial"))
