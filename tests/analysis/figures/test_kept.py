"""What is kept is made once for a machine."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from pipegap.analysis.figures import files
from pipegap.analysis.figures.files import kept, usual_faces


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pipegap" / "kept"


def numbers() -> Callable[[], bytes]:
    each = count()
    return lambda: str(next(each)).encode()


def test_it_is_made_once_of_the_same_things() -> None:
    make = numbers()
    assert [kept(make, *of) for of in ("ab", "ab", "ac", "ab", "ac")] == [
        *(b"0", b"0", b"1", b"0", b"1")
    ]
    assert kept(make, "ab") == b"2", "one thing is not two"


def test_where_nothing_can_be_written_it_is_made_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    make = numbers()
    assert [kept(make, "a"), kept(make, "a")] == [b"0", b"1"]


def test_letters_are_the_same_made_and_kept(folder: Path) -> None:
    pages = []
    for _ in range(2):
        files._usual.cache_clear()  # as in a new process
        files._face.cache_clear()
        pages.append(usual_faces())
    assert folder.is_dir()
    assert pages[0] == pages[1]
    assert pages[0].count("@font-face") == 2
