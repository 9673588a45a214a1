"""YAML as files and words have it: what is read, and what is said of what is not."""

import pytest

from pipegap.trainer.base.documents import NotRead, read

BAD = {
    "a tag": ("!!python/object:os.system x", "could not determine a constructor for the tag"),
    "a key twice": ("a: 1\nb: 2\na: 3", "the key a is there twice: remove or rename one in line 3"),
    "a key that is a list": ("? [a]\n: b", "unhashable key in line 1, column 3"),
    "an open bracket": ("[1", "in line 1, column 3"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_read_is_said_in_a_line(name: str) -> None:
    text, says = BAD[name]
    with pytest.raises(NotRead) as refused:
        read(text)
    assert says in str(refused.value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 250


def test_scalars_are_those_of_the_command_line() -> None:
    text = "[1, 1e-3, 1.5, true, null, on, 010, 12:30, 2026-01-02, .inf, ~, '1', 1_000]"
    assert read(text) == [
        *(1, 0.001, 1.5, True, None, "on", "010", "12:30", "2026-01-02", float("inf"), None, "1"),
        1000,
    ]


def test_an_alias_stands_for_one_value() -> None:
    assert read("[&a 1, *a, {b: *a}]") == [1, 1, {"b": 1}]
