"""The table of a long run has a row for each kind of input, however its tests ended."""

from pathlib import Path

import pytest

from tests.support import fuzzing
from tests.support.damage import Place


def test_each_kind_has_a_row_and_a_check_that_fails_is_a_defect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> fuzzing.Ended:
        raise AssertionError

    monkeypatch.setattr(fuzzing, "ended", {})
    fuzzing.inputs(1, "one", "other")
    fuzzing.inputs(1, "third")
    fuzzing.count("one", lambda: fuzzing.Ended(0, "", ""))
    fuzzing.count("third", lambda: fuzzing.Ended(2, "", "no\n"))
    with pytest.raises(AssertionError):
        fuzzing.count("one", fails)
    assert fuzzing.table().splitlines()[2:] == [
        "| one | 2 | 1 | 0 | 1 |",
        "| other | 0 | 0 | 0 | 0 |",
        "| third | 1 | 0 | 1 | 0 |",
        "| all | 3 | 1 | 1 | 1 |",
    ]


def test_the_arguments_of_a_test_that_failed_are_short_enough_to_be_printed() -> None:
    """Of longer ones hypothesis warns, and the warning stood in place of the failure."""
    large = Place(Path("there"), {Path("file"): (bytes(10**6), 0)}, Path("x"), {}, [], {})
    assert len(repr(large)) < 100
