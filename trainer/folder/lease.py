"""Who runs a trial: one process at a time, whatever dies, on one machine or many.

Attempt n at a trial is the file `attempt-n.json` in its folder, made by exclusive creation, so that
of several processes one gets the number. The highest number is in force until its holder says that
it ended, is known to be dead, or has not renewed it for a while. Ages are told by the clock of the
file system alone: those of the machines may differ. The files stay: they are the log of who ran
the trial, when, and how each attempt ended.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trainer.atomic import write_json
from trainer.errors import BadInput

RENEW_EVERY = 10.0
"""Seconds between the signs of life of a holder."""
STALE = 60.0
"""Seconds without one after which the trial is free, if its holder cannot be looked up here."""
PATIENCE = 5.0
"""Seconds to wait for a holder that may just be dying (a killed sweep, started again)."""
PATTERN = "attempt-*.json"

Attempt = dict[str, Any]


class Held(BadInput):
    """Another process runs the trial."""


class LeaseLost(RuntimeError):
    """Another process took the trial over: this one must write nothing more."""


class Lease:
    """One attempt, held."""

    def __init__(self, folder: Path, number: int, content: Attempt) -> None:
        self._next, self._path = attempt_path(folder, number + 1), attempt_path(folder, number)
        self._content = content

    def require(self) -> None:
        """Raises LeaseLost if another process holds the trial now."""
        if self._next.exists():
            raise LeaseLost(f"{self._path.parent} was taken over by another process")

    def note(self, **facts: object) -> None:
        """Adds to the attempt's record."""
        self.require()
        self._content |= facts
        write_json(self._path, self._content)

    def end(self, how: str) -> None:
        """Frees the trial; where the disk is too full to say how, by the file's age."""
        try:
            self.note(ended=how, ended_at=time.time())
        except OSError:
            os.utime(self._path, (0, 0))

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Gives signs of life meanwhile."""
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(RENEW_EVERY):
                with suppress(OSError):  # a file server may be away for a moment
                    os.utime(self._path)

        thread = threading.Thread(target=renew, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@contextmanager
def leased(folder: Path, outcome: Callable[[], str]) -> Iterator[Lease]:
    """Holds the next attempt at the trial of `folder`; `outcome` says at its end how it ended.

    An exception is noted as the end too. Raises Held if another process runs the trial,
    BadInput if the folder cannot be written.
    """
    try:
        lease = _take(folder)
    except OSError as error:
        raise BadInput("out", folder, f"must be writable ({error.strerror})") from None
    with lease.renewed():
        try:
            yield lease
        except BaseException as error:
            with suppress(LeaseLost):
                lease.end(type(error).__name__)
            raise
    lease.end(outcome())


def attempts(folder: Path) -> list[Path]:
    """Every attempt at the trial of `folder`, the newest last."""
    return sorted(folder.glob(PATTERN))


def attempt_path(folder: Path, number: int) -> Path:
    """The file of one attempt; their names sort by number."""
    return folder / f"attempt-{number:06d}.json"


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def read(path: Path) -> Attempt:
    """What is known of an attempt; nothing if its holder died before it could say who it is."""
    try:
        content: Attempt = json.loads(path.read_bytes())
    except ValueError:
        return {}
    return content


def holder(folder: Path) -> Attempt | None:
    """The attempt in force; None if the trial is free."""
    return _in_force(_newest(folder))


def _newest(folder: Path) -> Path | None:
    return max(folder.glob(PATTERN), default=None)


def _in_force(newest: Path | None) -> Attempt | None:
    if newest is None:
        return None
    attempt = read(newest)
    if "ended" in attempt or _is_dead(attempt) or _age(newest) > STALE:
        return None
    return attempt


def _take(folder: Path) -> Lease:
    deadline = time.monotonic() + PATIENCE
    while True:
        newest = _newest(folder)
        if (other := _in_force(newest)) is None:
            # The number after the one that was found free, not after one that came since.
            with suppress(FileExistsError):
                return _create(folder, 1 if newest is None else _number(newest) + 1)
        elif time.monotonic() > deadline:
            who = f"process {other.get('pid', '?')} on {other.get('host', '?')}"
            raise Held("out", folder, f"another process runs this trial ({who})")
        else:
            time.sleep(0.2)


def _create(folder: Path, number: int) -> Lease:
    """Raises FileExistsError if another process was faster."""
    content: Attempt = {
        "attempt": number,
        "host": platform.node(),
        "pid": os.getpid(),
        "machine": _machine(),
        "process_started": _process_started(os.getpid()),
        "started_at": time.time(),
    }
    path = attempt_path(folder, number)
    with path.open("x") as file:
        try:
            json.dump(content, file)
            file.flush()
        except OSError:  # an attempt that says nothing would hold the trial until it is stale
            path.unlink()
            raise
    return Lease(folder, number, content)


def _is_dead(attempt: Attempt) -> bool:
    """Whether it is known that the holder, a process of this machine, is no more."""
    if not attempt or attempt["machine"] is None or attempt["machine"] != _machine():
        return False
    return _process_started(attempt["pid"]) != attempt["process_started"]


def _machine() -> str | None:
    """What tells processes that can see each other: a boot and a namespace; None if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _process_started(pid: int) -> str | None:
    """Since a pid may be used again, this tells its processes apart; None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _age(path: Path) -> float:
    """Seconds since the file was touched, by the clock that dates files."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".clock-") as probe:
            now = os.fstat(probe.fileno()).st_mtime
    except OSError:  # a store that can only be read
        now = time.time()
    return now - path.stat().st_mtime
