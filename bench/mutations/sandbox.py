"""A copy of the checkout, and forked processes that run tests in it.

The parent has imported the slow libraries, so that a child needs no time for them; the project's
own modules it imports anew, from the copy. So do the processes that a test starts.
"""

from __future__ import annotations

import importlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

OURS = {"trainer", "sweeps", "analysis", "bench", "tests", "conf"}
SLOW_LIBRARIES = (
    *("torch", "numpy", "pandas", "pyarrow", "scipy.stats", "hydra", "pydantic"),
    *("altair", "safetensors", "tokenizers", "torch.distributed", "torch._dynamo", "omegaconf"),
    *("scipy.optimize", "jinja2"),
)
COLLECTION = "(collection)"
COLLECTION_LIMIT = 120.0
"""Seconds until the first test must have begun."""


@dataclass(frozen=True)
class Outcome:
    """What became of the tests."""

    failed: str
    """The first test that failed or did not end, with the reason; empty if all passed."""
    seconds: Mapping[str, float]
    """Of each test that passed."""
    hung: str = ""
    """The test that did not end in time, if that is the failure."""


class Sandbox:
    """A copy of `root`: what git knows of it and what it does not ignore, and a link to its data.

    Raises OSError if `folder` exists.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout
        folder.mkdir(parents=True)
        for name in filter(None, names.split("\0")):
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        (folder / "data").symlink_to((root / "data").resolve())

    @contextmanager
    def mutated(self, path: str, source: bytes) -> Iterator[None]:
        """The file `path` has this content inside the context."""
        file = self.folder / path
        whole, at = file.read_bytes(), file.stat()
        file.write_bytes(source)
        try:
            yield
        finally:
            file.write_bytes(whole)
            os.utime(file, ns=(at.st_atime_ns, at.st_mtime_ns))  # its compiled module stays valid

    def run(
        self,
        tests: Sequence[str],
        limit: Callable[[str], float],
        log: Path,
        *plugins: object,
        words: Sequence[str] = ("-x",),
        before: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Runs `tests` in this order in a child; `limit` gives the seconds that each may take.

        What they print goes to `log`. `before` is called in the child before any import of ours.
        """
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ours)
            self._be_child(tests, theirs, log, [*plugins], words, before)
        os.close(theirs)
        try:
            return _followed(ours, limit)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(ours)

    def _be_child(
        self,
        tests: Sequence[str],
        pipe: int,
        log: Path,
        plugins: list[object],
        words: Sequence[str],
        before: Callable[[], None],
    ) -> None:
        """Never returns."""
        try:
            os.setsid()
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(output, stream)
            for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
                del sys.modules[name]
            sys.modules["__main__"] = ModuleType("__main__")  # which spawned processes import
            os.chdir(self.folder)
            known = [path for path in sys.path if path and not (Path(path) / "bench").is_dir()]
            sys.path[:] = [str(self.folder), *known]
            os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(log.with_suffix(".examples"))
            sys.dont_write_bytecode = True
            before()
            options = ["-n", "0", "-p", "no:randomly", "-p", "no:cacheprovider", "--tb=short"]
            options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what is preloaded
            given = [*options, "--hypothesis-seed=0", *words, *tests]
            code = pytest.main(given, plugins=[_Tell(pipe), *plugins])
            if code != pytest.ExitCode.OK:
                os.write(pipe, f"failed\t{COLLECTION}\texit code {int(code)}\n".encode())
            os.write(pipe, b"end\t\t\n")
        except BaseException:
            traceback.print_exc()  # into the log
            sys.stderr.flush()
            raise
        finally:
            os._exit(0)


class _Tell:
    """A plugin that writes to a pipe which test begins, and how it ends."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._began = 0.0

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._began = time.monotonic()
        self._tell("begins", nodeid, "")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._tell("failed", report.nodeid, report.when or "")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._tell("passed", nodeid, f"{time.monotonic() - self._began:.3f}")

    def _tell(self, *words: str) -> None:
        os.write(self._pipe, ("\t".join(words) + "\n").encode())


def _followed(pipe: int, limit: Callable[[str], float]) -> Outcome:
    """Reads what a child tells, until it ends or a test takes longer than its limit."""
    failed, seconds, rest, current = "", dict[str, float](), b"", COLLECTION
    while True:
        allowed = COLLECTION_LIMIT if current == COLLECTION else limit(current)
        if not select.select([pipe], [], [], allowed)[0]:
            hung = "" if failed else current
            return Outcome(failed or f"{current} (no end after {allowed:.3g} s)", seconds, hung)
        got = os.read(pipe, 65536)
        if not got:
            return Outcome(failed or f"{current} (its process died)", seconds)
        *lines, rest = (rest + got).split(b"\n")
        for line in lines:
            word, test, value = line.decode().split("\t")
            if word == "end":
                return Outcome(failed, seconds)
            if word == "begins":
                current = test
            elif word == "failed":
                failed = failed or f"{test} ({value})"
            elif test not in failed:
                seconds[test] = float(value)


def preload() -> None:
    """Imports the slow libraries, with one thread for torch."""
    for name in SLOW_LIBRARIES:
        importlib.import_module(name)
    torch: Any = sys.modules["torch"]
    torch.set_num_threads(1)
