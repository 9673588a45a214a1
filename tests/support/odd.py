"""Hypothesis strategies for input that is nearly right: valid words, files and JSON, changed."""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

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
