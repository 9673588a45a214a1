"""Runs a command in this process on odd input, and asserts how it may end."""

import io
import os
import signal
import warnings
from collections import Counter
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

ENDINGS = ("accepted", "refused", "defect")

ended: dict[str, Counter[str]] = {}
"""Kind of input → how it ended → how many; every kind of the collected tests, tried or not."""
budget: dict[str, int] = {}
"""`inputs`: how many of each kind `make fuzz` asked for; empty in the suite."""


def inputs(num: int, *kinds: str, share: float = 1.0) -> settings:
    """As many inputs in the suite, always the same ones, or that share of what was asked for.

    `kinds`: what the test tries, each a row of the table.
    """
    for kind in kinds:
        ended.setdefault(kind, Counter())
    asked = budget.get("inputs")
    return settings(
        max_examples=num if asked is None else max(1, round(asked * share)),
        derandomize=asked is None,
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


def count(kind: str, attempt: Callable[[], Ended]) -> None:
    """Counts how an input ends. Whatever is raised meanwhile, by a command or by a check of what it
    did, is a defect."""
    try:
        ending = "accepted" if attempt().code == 0 else "refused"
    except KeyboardInterrupt:  # whoever stops a long run is no defect
        raise
    except BaseException:
        ended[kind]["defect"] += 1
        raise
    ended[kind][ending] += 1


def passable(words: Iterable[str]) -> list[str]:
    """The words as a shell can pass them: without NUL, and bytes that are no text as surrogates."""
    return [os.fsdecode(word.replace("\0", "").encode(errors="replace")) for word in words]


def run(main: Main, words: Sequence[str], seconds: float = CPU_SECONDS) -> Ended:
    """Runs `main` with these words. What it raises is a defect."""
    out, err = io.StringIO(), io.StringIO()
    allowed = seconds if budget else BUSY * seconds
    with redirect_stdout(out), redirect_stderr(err), limited(allowed):
        try:
            code: Any = main(words)
        except SystemExit as end:
            code = end.code
        except TooLong:
            raise AssertionError(f"more than {allowed:g} seconds of CPU: {words}") from None
    found = Ended(code, out.getvalue(), err.getvalue())
    found.err.encode()  # a terminal could not show half a character
    return found


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


def table() -> str:
    """How many inputs of each kind were tried, and how they ended."""
    whole: Counter[str] = sum(ended.values(), Counter())
    rows = [("input", "tried", *ENDINGS), ("---",) * (2 + len(ENDINGS))]
    for kind, endings in [*ended.items(), ("all", whole)]:
        rows.append(
            (kind, *(f"{num:,}" for num in (endings.total(), *(endings[how] for how in ENDINGS))))
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def warm(*commands: tuple[Main, Sequence[str]]) -> list[Ended]:
    """Runs each once, uncounted: imports are not part of what an input costs, nor what they warn
    of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [run(main, words, 60) for main, words in commands]
