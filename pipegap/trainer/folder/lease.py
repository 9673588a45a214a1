"""Which process runs a trial: one at a time, whatever dies, on one machine or many.

Attempt n at a trial is the file `attempt-n.json` in its folder. It is created exclusively, so that
only one of several processes gets the number. The attempt with the highest number holds the
trial until it records its end, its process is known to be dead, or it is stale: its heartbeat, the
time of the file's last change, is too old. Ages are read from the clock of the file system alone,
since the clocks of machines may differ. The files stay: they are the log of who ran the trial,
when, and how each attempt ended.
"""

import json
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from pipegap.trainer.base.atomic import SUFFIX, write_json
from pipegap.trainer.base.children import repeated
from pipegap.trainer.base.errors import BadInput, LeaseLost
from pipegap.trainer.folder import wellformed
from pipegap.trainer.folder.wellformed import Damaged

Attempt = dict[str, Any]
"""What an attempt's file says of its process."""

HEARTBEAT_EVERY = 10.0
"""Seconds between two heartbeats of a holder."""
STALE_AFTER = 60.0
"""Seconds without a heartbeat after which the trial is free, if this machine cannot see whether its
holder is alive."""
ACQUIRE_TIMEOUT = 5.0
"""Seconds to wait for a holder that may be about to die (a killed sweep, started again)."""
PATTERN = "attempt-*.json"
NAME = re.compile(r"attempt-([0-9]+)\.json")


class Held(BadInput):
    """Another process runs the trial."""


class Lease:
    """Attempt `number`, which this process holds.

    `started_ns`: the file system's time when it took the trial. Whoever wrote before does not hold
    it any more.
    """

    def __init__(self, folder: Path, number: int, content: Attempt, started_ns: int) -> None:
        self.number, self.started_ns = number, started_ns
        self._next, self._path = attempt_path(folder, number + 1), attempt_path(folder, number)
        self._content = content
        self._end = {key: content[key] for key in ("ended", "ended_at") if key in content}

    def require(self) -> None:
        """Raises LeaseLost if another process holds the trial now, or its folder is gone."""
        # Whoever takes the trial over creates the next attempt: that file is the only sign of it.
        if self._next.exists():
            raise LeaseLost(f"{self._path.parent} was taken over by another process")
        # Without this, rows would go on into a file that has no name any more.
        if not self._path.exists():
            raise LeaseLost(f"{self._path.parent} was deleted while its trial ran")

    def note(self, **facts: object) -> None:
        """Adds `facts` to the attempt's file. Raises LeaseLost."""
        self._content |= facts
        write_json(self._path, self._content, self.require)

    def end(self, how: str) -> None:
        """Frees the trial and records `how` the attempt ended; raises LeaseLost.

        On a full disk it frees the trial alone, by making the file stale.
        """
        try:
            self.note(**{"ended": how, "ended_at": time.time()} | self._end)
        except OSError:
            with suppress(FileNotFoundError):
                os.utime(self._path, (0, 0))

    def heartbeat(self) -> AbstractContextManager[None]:
        """Sends heartbeats from a thread while the context lasts."""

        def beat() -> bool:
            with suppress(OSError):  # a file server may be away for a moment
                os.utime(self._path)
            return True

        return repeated(beat, HEARTBEAT_EVERY, "lease")


@contextmanager
def leased(
    folder: Path,
    outcome: Callable[[], str],
    made_by: Mapping[str, object] = {},
    newest_before: int | None = None,
) -> Iterator[Lease]:
    """Holds the next attempt at the trial of `folder` while the context lasts; or, if the newest
    has a number above `newest_before` and its process is known to be gone, that one, of whose end
    it was left to tell.

    `made_by`, the code and the device, is recorded with it and, at its end, `outcome()` as how it
    ended, or the name of the exception that ended it. Raises Held if another process runs the
    trial, BadInput if the folder cannot be written, LeaseLost if another process took it over.
    """
    try:
        lease = _take(folder, made_by, newest_before)
    except OSError as error:
        raise BadInput("out", folder, f"must be writable ({error.strerror})") from None
    with lease.heartbeat():
        try:
            yield lease
        except BaseException as error:
            if isinstance(error, OSError):
                lease.require()  # what failed may be a file that another process deleted
            with suppress(LeaseLost):
                lease.end(type(error).__name__)
            raise
    lease.end(outcome())


def attempts(folder: Path) -> list[Path]:
    """The files of all attempts at the trial of `folder`, the newest last."""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        files = (folder / name for name in os.listdir(folder) if NAME.fullmatch(name))
        return sorted(files, key=_number)
    return []


def attempt_path(folder: Path, number: int) -> Path:
    """The file of attempt `number`. The names sort by number, as long as it has six digits."""
    return folder / f"attempt-{number:06d}.json"


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def read(path: Path) -> Attempt:
    """The content of an attempt's file; empty if its process died before it wrote any, or if the
    file is damaged or another user's: then nothing is known of the process but its last
    heartbeat."""
    try:
        return wellformed.read(path, wellformed.ATTEMPT)
    except (Damaged, OSError):  # a link may lead nowhere
        return {}


def trained(folder: Path) -> list[Attempt]:
    """The attempts whose updates are in the record of the trial, each from its `from_update` on."""
    attempts_kept: list[Attempt] = []
    for attempt in filter(lambda attempt: "from_update" in attempt, map(read, attempts(folder))):
        # What an earlier attempt did beyond this update is done again, and so does not count.
        while attempts_kept and attempts_kept[-1]["from_update"] >= attempt["from_update"]:
            attempts_kept.pop()
        attempts_kept.append(attempt)
    return attempts_kept


def holder(folder: Path) -> Attempt | None:
    """The content of the attempt that holds the trial; None if the trial is free."""
    return _held_by(_newest(folder))


def newest_number(folder: Path) -> int:
    """The number of the newest attempt at the trial of `folder`; 0 if there is none."""
    newest = _newest(folder)
    return 0 if newest is None else _number(newest)


def _newest(folder: Path) -> Path | None:
    return max(attempts(folder), key=_number, default=None)


def _held_by(newest: Path | None) -> Attempt | None:
    if newest is None:
        return None
    attempt = read(newest)
    # Three signs that nobody runs it; the last one alone works between machines.
    if "ended" in attempt or is_dead(attempt) or _age(newest) > STALE_AFTER:
        return None
    return attempt


def _take(folder: Path, made_by: Mapping[str, object], newest_before: int | None) -> Lease:
    deadline = time.monotonic() + ACQUIRE_TIMEOUT
    while True:
        newest = _newest(folder)
        if (holder_now := _held_by(newest)) is None:
            if newest and newest_before is not None and _number(newest) > newest_before:
                content = read(newest)
                # A process that is only silent may wake: the next number is what it looks for.
                if "ended" in content or is_dead(content):
                    return Lease(folder, _number(newest), content, newest.stat().st_mtime_ns)
            # The number after the attempt that was seen to have ended, not after a newer one: of
            # two processes that saw the same end, only one can create the file.
            with suppress(FileExistsError):
                return _create(folder, 1 if newest is None else _number(newest) + 1, made_by)
        elif time.monotonic() > deadline:
            who = f"process {holder_now.get('pid', '?')} on {holder_now.get('host', '?')}"
            raise Held("out", folder, f"another process runs this trial ({who})")
        else:
            time.sleep(0.2)


def _create(folder: Path, number: int, made_by: Mapping[str, object]) -> Lease:
    """Raises FileExistsError if another process was faster."""
    content = {**new_attempt(number), **made_by}
    path = attempt_path(folder, number)
    with path.open("x", encoding="utf-8") as file:
        try:
            json.dump(content, file)
            file.flush()
        except OSError:  # an empty attempt would hold the trial until it is stale
            path.unlink()
            raise
        started_ns = os.fstat(file.fileno()).st_mtime_ns
    return Lease(folder, number, content, started_ns)


def _age(path: Path) -> float:
    """Seconds since the file was changed, by the clock of the file system."""
    # A file made now has the file system's time: the clock of this machine may go wrong.
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".clock-", suffix=SUFFIX) as probe:
            time_now = os.fstat(probe.fileno()).st_mtime
    except OSError:  # a store that can only be read
        time_now = time.time()
    return time_now - path.lstat().st_mtime


def new_attempt(number: int) -> Attempt:
    """What an attempt's file says of this process when it takes a trial."""
    return {
        "attempt": number,
        "host": platform.node(),
        "pid": os.getpid(),
        "machine": _machine(),
        "process_started": _process_started(os.getpid()),
        "started_at": time.time(),
    }


def is_dead(attempt: Attempt) -> bool:
    """Whether the holder is known to be a process of this machine that no longer exists."""
    if attempt.get("machine") is None or attempt["machine"] != _machine():
        return False
    return _process_started(attempt.get("pid", 0)) != attempt.get("process_started")


def _machine() -> str | None:
    """Identifies the processes that see each other, by boot and PID namespace; None if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _process_started(pid: int) -> str | None:
    """The start of process `pid`, in clock ticks since boot; None if there is no such process.

    It tells two processes apart that had the same pid, one after the other.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
