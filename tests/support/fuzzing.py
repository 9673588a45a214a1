"""Hypothesis strategies for input that is nearly right: valid words, files and JSON, changed."""

import io
import json
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from pipegap.trainer.base.errors import one_line

Draw = Callable[[st.SearchStrategy[Any]], Any]

WORDS = (
    *("", " ", "null", "none", "true", "False", "-1", "0", "1", "0.5", "-0.0", "1e-400", "1e400"),
    *("nan", "inf", "-inf", ".inf", ".nan", "1e12", "1e300", "9" * 30, "0x10", "1_000", "٣", "½"),
    *("[]", "[1]", "[1,.inf]", "{}", "{a:1}", "[[[]]]", "'", '"', "\\", "a\\nb", "a\nb", "\r"),
    *("\t", "\0", "ä", "🦆", "\u202e", "é" * 40, "x" * 300, "x" * 5000, "[" * 200),
    *("a,b", "=", "==", "${num_updates}", "${oc.env:HOME}", "${", "???"),
    *("!!python/object:os.system", "&a [*a]", "<<", "..", "../..", "/", "~", "*", "?", "%s", "{0}"),
    *("$(id)", ";", "#", "@", "--", "-h=", "+", "~a"),
)
"""Values that are seldom what a key wants."""
NUMBERS = (-1, 0, 1, 2, 1000, 10**6, 10**12, 2**63, 10**30, -0.0, 0.5, 1e-300, 1e12, 1e300)
NOT_FINITE = (float("nan"), float("inf"), -float("inf"))

characters = st.one_of(st.sampled_from("=.,:[]{}'\"\\$#&*!|> \t\n\0-+~ä🦆0"), st.characters())


def scalars() -> st.SearchStrategy[Any]:
    """What a leaf of YAML or JSON may be."""
    kinds = (*WORDS, *NUMBERS, *NOT_FINITE, None, True, False)
    return st.one_of(st.sampled_from(kinds), st.text(max_size=8), st.integers(), st.floats())


def values() -> st.SearchStrategy[Any]:
    """The same, nested."""
    return st.recursive(
        scalars(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=4,
    )


@st.composite
def texts(draw: Draw, valid: str) -> str:
    """A valid text with a piece dropped, doubled, swapped or replaced, up to three times."""
    text = valid
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        stop = draw(st.integers(start, min(len(text), start + 12)))
        piece = text[start:stop]
        others = map(st.just, ("", piece * 2, piece[::-1]))
        new = draw(st.one_of(*others, characters, st.sampled_from(WORDS)))
        text = text[:start] + new + text[stop:]
    return text


@st.composite
def contents(draw: Draw, valid: bytes) -> bytes:
    """The bytes of a file: cut off, zeroed, changed in a byte, doubled, or others."""
    start = draw(st.integers(0, len(valid)))
    stop = draw(st.integers(start, len(valid)))
    changed = {
        "cut off": valid[:start],
        "its end": valid[start:],
        "a hole": valid[:start] + valid[stop:],
        "zeros": valid[:start] + bytes(stop - start) + valid[stop:],
        "a byte": valid[:start] + draw(st.binary(min_size=1, max_size=1)) + valid[start + 1 :],
        "twice": valid * 2,
        "empty": b"",
        "others": draw(st.binary(max_size=40)),
    }
    return changed[draw(st.sampled_from([*changed]))]


@st.composite
def trees(draw: Draw, valid: Any) -> Any:
    """A nested value with up to three places dropped, doubled, renamed or replaced."""
    root = [deepcopy(valid)]
    for _ in range(draw(st.integers(1, 3))):
        node, place = draw(st.sampled_from([*_places(root)]))
        how = draw(st.sampled_from(("replace", "replace", "drop", "rename", "nest", "text")))
        if node is root or how == "replace":
            node[place] = draw(values())
        elif how == "drop":
            del node[place]
        elif how == "nest":
            node[place] = draw(st.sampled_from(([node[place]], {"a": node[place]})))
        elif how == "text":
            node[place] = str(node[place])
        elif isinstance(node, dict):
            node[draw(st.sampled_from(WORDS)) or place + "x"] = node.pop(place)
    return root[0]


def _places(node: Any) -> Any:
    """Each mapping or list below `node` with each of its keys or indices."""
    inner = node.items() if isinstance(node, dict) else enumerate(node)
    for place, value in [*inner]:
        yield node, place
        if isinstance(value, dict | list):
            yield from _places(value)


@st.composite
def json_files(draw: Draw, valid: bytes) -> bytes:
    """A file of JSON: its bytes changed, or its values."""
    if draw(st.booleans()):
        return draw(contents(valid))
    try:
        tree = json.loads(valid)
    except ValueError:
        return draw(contents(valid))
    found = json.dumps(draw(trees(tree)))
    return found.encode()


@st.composite
def lines(draw: Draw, valid: bytes) -> bytes:
    """A file of JSON lines: some dropped, doubled, swapped or changed."""
    if draw(st.booleans()):
        return draw(contents(valid))
    found = valid.splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(found) - 1))
        found[at : at + 1] = draw(
            st.one_of(
                st.just([]),
                st.just([found[at]] * 2),
                json_files(found[at]).map(lambda line: [line.rstrip(b"\n") + b"\n"]),
            )
        )
        if not found:
            break
    return b"".join(found)


@st.composite
def commands(draw: Draw, valid: Sequence[Sequence[str]], keys: Sequence[str]) -> list[str]:
    """A valid command line with words dropped, doubled, swapped and changed; seldom any words.

    `keys`: of the command, which get odd values.
    """
    words = [*draw(st.sampled_from([*valid]))]
    if draw(st.integers(0, 9)) == 0:
        return [str(word) for word in draw(st.lists(st.text(max_size=20), max_size=4))]
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(words) - 1)))
        new = draw(st.sampled_from(keys)) + "=" + draw(st.sampled_from(WORDS) | st.text(max_size=9))
        kind = draw(st.sampled_from(("add", "add", "value", "drop", "double", "swap", "change")))
        if kind == "add" or not words:
            words.insert(at, new)
        elif kind == "value":
            words[at] = words[at].split("=")[0] + "=" + new.partition("=")[2]
        elif kind == "drop":
            del words[at]
        elif kind == "double":
            words.insert(at, words[at])
        elif kind == "swap":
            words[at], words[-1] = words[-1], words[at]
        else:
            words[at] = draw(texts(words[at]))
    return words


# Runs a command in this process on odd input, and asserts how it may end.

CPU_SECONDS, BUSY = 2.0, 5.0
"""What an input may cost before it is accepted or refused; so many times as much in the suite,
beside other tests: there it only has to end."""
SHOWN = 40
"""Characters of a long word that a message shows at least."""
Main = Callable[[Sequence[str]], int]
Tree = dict[str, tuple[int, bytes | None]]

NUM_EXAMPLES: list[int] = []
"""How many inputs of each kind `make fuzz` asks for; empty in the suite."""


def inputs(num: int, share: float = 1.0) -> settings:
    """As many inputs in the suite, always the same ones, or that share of what was asked for."""
    return settings(
        max_examples=max(1, round(NUM_EXAMPLES[0] * share)) if NUM_EXAMPLES else num,
        derandomize=not NUM_EXAMPLES,
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
    allowed = seconds if NUM_EXAMPLES else BUSY * seconds
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
