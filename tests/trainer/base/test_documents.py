"""YAML is read within bounds: whatever it holds, the work grows with its length at most."""

import sys

import pytest

from trainer.base.documents import MAX_LENGTH, NotRead, read

BOMB = "a: &a [x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
BAD = {
    "a bomb of anchors": (BOMB, "an alias (*name) stands for more"),
    "a merge": ("a: &a {x: 1}\nb:\n  <<: *a\n", "an alias (*name) stands for more"),
    "brackets": ("[" * 3_000, "more than 20 lists and mappings within each other"),
    "braces": ("{" * 3_000, "more than 20 lists"),
    "dashes": ("- " * 3_000, "more than 20 lists"),
    "length": ("a" * (MAX_LENGTH + 1), "it has more than 30,000 characters"),
    "a tag": ("!!python/object:os.system x", "a tag (tag:yaml.org,2002:python/object:os.system)"),
    "a tag of YAML's": ("!!int x", "a tag (tag:yaml.org,2002:int) is not read"),
    "a key twice": ("a: 1\nb: 2\na: 3", "the key a is there twice: remove or rename one in line 3"),
    "a key twice within": ("a: {b: 1, b: 2}", "the key b is there twice"),
    "a key that is a list": ("? [a]\n: b", "unhashable key in line 1, column 3"),
    "two documents": ("--- 1\n--- 2", "another document in line 2"),
    "an open bracket": ("[1", "in line 1, column 3"),
    "a NUL": ("a\0", "special characters are not allowed"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_read_is_said_in_a_line(name: str) -> None:
    text, says = BAD[name]
    with pytest.raises(NotRead) as refused:
        read(text)
    assert says in str(refused.value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize("item", ["1,", "{a: 1},", "'a b',", "[[1]],"])
def test_twice_the_length_is_at_most_twice_the_work(item: str) -> None:
    count = 2_000 // len(item)
    half, whole = (_calls(f"[{item * n}]") for n in (count, 2 * count))
    assert whole < 2.1 * half
    assert whole < 300 * len(item) * 2 * count


def _calls(text: str) -> int:
    """The number of functions called to read `text`: unlike seconds, the same on every machine."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        read(text)
    finally:
        sys.setprofile(before)
    return calls


def test_scalars_are_those_of_the_command_line() -> None:
    text = "[1, 1e-3, 1.5, true, null, on, 010, 12:30, 2026-01-02, .inf, ~, '1', 1_000]"
    assert read(text) == [
        *(1, 0.001, 1.5, True, None, "on", "010", "12:30", "2026-01-02", float("inf"), None, "1"),
        1000,
    ]


def test_an_alias_stands_for_one_value() -> None:
    assert read("[&a 1, *a, {b: *a}]") == [1, 1, {"b": 1}]


def test_a_number_without_an_end_is_text() -> None:
    assert read("9" * 9_000) == "9" * 9_000
