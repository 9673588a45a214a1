"""What is kept is made once for a machine, and never read where it is damaged."""

from collections.abc import Callable
from importlib import import_module
from itertools import count
from pathlib import Path

import pytest

from pipegap.analysis.figures.kept import kept, source


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pipegap" / "made"


def numbers() -> Callable[[], bytes]:
    each = count()
    return lambda: str(next(each)).encode()


def test_it_is_made_once_of_the_same_things() -> None:
    make = numbers()
    assert [kept(make, *of) for of in ("ab", "ab", "ac", "ab", "ac")] == [
        *(b"0", b"0", b"1", b"0", b"1")
    ]
    assert kept(make, "ab") == b"2", "one thing is not two"


@pytest.mark.parametrize("damaged", [b"", b"short", b"0" * 40])
def test_a_damaged_file_is_made_anew(folder: Path, damaged: bytes) -> None:
    make = numbers()
    kept(make, "a")
    [file] = folder.iterdir()
    file.write_bytes(damaged)
    assert kept(make, "a") == b"1"
    assert kept(make, "a") == b"1"


def test_a_source_is_the_code_of_a_module_and_of_those_in_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "of_kept"
    package.mkdir()
    for name in ("__init__", "one", "two"):
        (package / f"{name}.py").write_text(f"# {name}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    whole, one = import_module("of_kept"), import_module("of_kept.one")
    assert source(whole) == "# __init__\n# one\n# two\n"
    assert source(one, whole) == "# one\n" + source(whole)
    (package / "two.py").write_text("# 2\n")
    assert source(whole) == "# __init__\n# one\n# 2\n"
