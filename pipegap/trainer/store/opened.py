"""The store that a word of a command names: a folder that machines share, or an object store, which
is a bucket or a prefix in it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from pipegap.trainer.base.children import scratch
from pipegap.trainer.base.errors import FINAL, LeaseLost
from pipegap.trainer.base.places import is_url, require_folder
from pipegap.trainer.folder.wellformed import Damaged
from pipegap.trainer.store import driver, register
from pipegap.trainer.store.bucket import BucketClient, StoreAway
from pipegap.trainer.store.files import FileStore
from pipegap.trainer.store.mirror import AT_ONCE, Mirror
from pipegap.trainer.store.register import ARCHIVED, CHECKPOINT, RESULT, Register, fetch, see
from pipegap.trainer.store.store import (
    STAYS,
    Config,
    RunningTrial,
    Spare,
    Stored,
    SweepStore,
    TrialState,
)
from pipegap.trainer.store.working import WorkingFolder


def open_store(word: str) -> SweepStore:
    """Return the store `word`, a folder or the URL of an object store; raises BadInput.

    Asks nothing of the store yet.
    """
    if is_url(word):
        return ObjectStore(word)
    require_folder("results", word)
    return FileStore(Path(word))


def local_folder(word: str | Path) -> Path:
    """Return the folder in which this machine reads the store `word`. It need not exist.

    May also be a report's table of trials, a CSV. Raises BadInput for what can be no store.
    """
    if is_url(str(word)):
        return ObjectStore(str(word)).folder
    require_folder("results", str(word), or_file=".csv")
    return Path(word)


def pulled(word: str | Path) -> Path:
    """Return that folder with what the store has now. Raises StoreAway if it does not answer."""
    if is_url(str(word)):
        ObjectStore(str(word)).pull()
    return local_folder(word)


class ObjectStore:
    """A `SweepStore` in a bucket, read in a copy on this machine."""

    def __init__(self, url: str) -> None:
        self._bucket = BucketClient(url)
        self._driver = ""
        """The token of the driver that this process is, or works for."""
        self._started: set[str] | None = None

    @property
    def name(self) -> str:
        """Its URL."""
        return self._bucket.url

    @property
    def folder(self) -> Path:
        """The copy of this machine."""
        return Mirror(self._bucket).path

    def require_usable(self) -> None:
        """Do nothing: `driven` finds out what cannot be written."""

    @contextmanager
    def driven(self) -> Iterator[None]:
        """Drive the prefix. Raises BadInput if another driver does: see `driver.driving`."""
        with driver.driving(self._bucket) as self._driver:
            yield

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
        """Return the ids of the trials that drivers before had started."""
        if self._started is None:
            with suppress(StoreAway):  # for a moment
                self._started = {Path(m.key).stem for m in self._bucket.list(register.FOLDER)}
        return (self._started or set()) & trials.keys()

    def state_of(self, trial: Stored) -> TrialState:
        """Return what the register says: one request. Nobody but this driver runs trials."""
        try:
            status = see(self._bucket, trial.trial_id).register.status
        except Damaged:
            return TrialState.DAMAGED
        except StoreAway:
            return TrialState.HELD
        return TrialState.ENDED if status in FINAL else TrialState.FREE

    @contextmanager
    def running(self, config: Config, trial_id: str) -> Iterator[RunningTrial]:
        """Yield the trial. It runs in a folder of its own, which is deleted after."""
        if not driver.drives(self._bucket, self._driver):
            raise LeaseLost(f"{self.name} has another driver")
        with scratch(self.folder.parent / "work", "trial-") as folder:
            state_seen = see(self._bucket, trial_id)
            config_here = {**config, "out": str(folder)}
            if state_seen.register.status in FINAL:
                fetch(self._bucket, state_seen.register.files[RESULT], folder / RESULT)
                yield RunningTrial(config_here)
                return
            stored = {**config, "results": self.name, "out": None}
            work = WorkingFolder(self._bucket, state_seen, folder, stored, self._driver)
            with work.held():
                yield RunningTrial(config_here, work.is_lost)

    def archive(self, trial: Stored) -> Callable[[], object]:
        """Rename the files of the output in the register, to `earlier-<n>/`; no object moves.

        A damaged register stays as it is: `state_of` says that the trial cannot run.
        """
        try:
            state_seen = see(self._bucket, trial.trial_id)
        except Damaged:
            return lambda: None
        register_before = state_seen.register
        state_seen.write(files=_archived(register_before))

        def restore() -> None:
            with suppress(Damaged):
                state_now = see(self._bucket, trial.trial_id)
                if state_now.register.attempt == register_before.attempt:
                    state_now.write(files=register_before.files)

        return restore

    def spare(self, folders: Sequence[Path]) -> Iterator[Spare]:
        """Yield checkpoints, and what no register names: uploads of processes that were killed.

        Of a trial whose register is damaged nothing is spare.
        """
        sizes_there: dict[str, dict[str, int]] = {}
        for meta in self._bucket.list("trials"):
            _, _, below = meta.key.partition("/")
            sizes_there.setdefault(below.partition("/")[0], {})[meta.key] = meta.size
        for folder in folders:
            sizes = sizes_there.get(folder.name, {})
            with suppress(Damaged):
                register_left = _without_checkpoints(see(self._bucket, folder.name).register)
                sizes = {key: size for key, size in sizes.items() if key not in register_left.keys}
                if sizes:
                    delete = partial(self._drop, folder.name, [*sizes])
                    yield Spare(len(sizes), sum(sizes.values()), delete)

    def _drop(self, trial_id: str, keys: Sequence[str]) -> None:
        state_seen = see(self._bucket, trial_id)
        state_seen.write(files=_without_checkpoints(state_seen.register).files)
        self._bucket.delete(keys)

    @contextmanager
    def probe(self) -> Iterator[Callable[[], bool]]:
        """A machine that sees this store sees who drives it."""
        yield partial(driver.drives, self._bucket, self._driver)


def _archived(register_now: Register) -> dict[str, register.File]:
    """Return the files with those of the output in a new folder."""
    earlier = {name.split("/")[0] for name in register_now.files if name.startswith(ARCHIVED)}
    archive = f"{ARCHIVED}{1 + len(earlier):06d}"
    return {_moved(name, archive): file for name, file in register_now.files.items()}


def _moved(name: str, archive: str) -> str:
    """Return the name of a file in the folder `archive`, or its own if the file stays."""
    top = Path(name.split("/", maxsplit=1)[0])
    stays = any(top.match(pattern) for pattern in STAYS) and name != RESULT
    return name if stays else f"{archive}/{name}"


def _without_checkpoints(register_now: Register) -> Register:
    files_left = {
        name: file for name, file in register_now.files.items() if not name.startswith(CHECKPOINT)
    }
    return replace(register_now, files=files_left)


def _files(path: Path) -> Iterator[Path]:
    paths = [path] if path.is_file() else sorted(path.rglob("*"))
    return (file for file in paths if file.is_file() and not file.name.endswith(".partial"))
