"""Runs a command in this process on odd input, and asserts how it may end."""

import io
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, settings

from pipegap.trainer.base.errors import one_line

CPU_SECONDS, BUSY = 2.0, 5.0
"""What an input may cost before it is accepted or refused; so many times as much in the suite,
beside other tests: there it only has to end."""
SHOWN = 40
"""Characters of a long word that a message shows at least."""
Main = Callable[[Sequence[str]], int]
Tree = dict[str, tuple[int, bytes | None]]

asked: list[int] = []
"""How many inputs of each kind `make fuzz` asks for; empty in the suite."""


def inputs(num: int, share: float = 1.0) -> settings:
    """As many inputs in the suite, always the same ones, or that share of what was asked for."""
    return settings(
        max_examples=max(1, round(asked[0] * share)) if asked else num,
        derandomize=not asked,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        deadline=None,
        suppress_health_check=[*HealthCheck],
    )


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


class TooLong(BaseException):
    """A command took more than CPU_SECONDS."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises TooLong in what takes more than so many seconds of this process's CPU time."""

    def stop(signum: int, frame: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def passable(words: Iterable[str]) -> list[str]:
    """The words as a shell can pass them: without NUL, and bytes that are no text as surrogates."""
    return [os.fsdecode(word.replace("\0", "").encode(errors="replace")) for word in words]


def run(main: Main, words: Sequence[str], seconds: float = CPU_SECONDS) -> Ended:
    """Runs `main` with these words. What it raises is a defect."""
    out, err = io.StringIO(), io.StringIO()
    allowed = seconds if asked else BUSY * seconds
    with redirect_stdout(out), redirect_stderr(err), limited(allowed):
        try:
            code: Any = main(words)
        except SystemExit as end:
            code = end.code
        except TooLong:
            raise AssertionError(f"more than {allowed:g} seconds of CPU: {words}") from None
    return Ended(code, out.getvalue(), err.getvalue())


def require_one_line(found: Ended, program: str, known: Iterable[str]) -> None:
    """It was accepted, or refused in one line that names one of the `known` keys or files."""
    if found.code == 0:
        return
    assert found.code == 2, found
    assert found.err.endswith("\n"), found
    assert found.err.count("\n") == 1, found
    assert found.err.startswith(f"{program}: "), found
    shown = (one_line(key)[:SHOWN] for key in known if key)
    assert any(key in found.err for key in shown), found


def tree(folder: Path) -> Tree:
    """Every file below a folder with its content, but for an index, which may be made again."""
    found: Tree = {}
    for path in sorted(folder.rglob("*")):
        if ".index" not in path.parts:
            content = path.read_bytes() if path.is_file() else None
            found[str(path)] = (path.lstat().st_mtime_ns if content is not None else 0, content)
    return found


def warm(*commands: tuple[Main, Sequence[str]]) -> list[Ended]:
    """Runs each once: imports are not part of what an input costs, nor what they warn of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [run(main, words, 60) for main, words in commands]
