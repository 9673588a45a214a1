"""Odd but right words just work: a path, a value, a folder of choices of one's own."""

from pathlib import Path

import pytest

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.compose import compose
from pipegap.trainer.config.words import parse_word

PATHS = [
    "dätä/wiki",
    "data/🙂",
    "👩\u200d🔬/a\u00a0b",
    "a b/c",
    "a=b",
    "a,b",
    "(a)",
    "{a",
    "a:b",
    "-",
    "a#b",
    "%a",
    "@a",
]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_needs_quotes_only_where_it_looks_like_something_else(path: str) -> None:
    quoted = f"'{path}'" if path.startswith("{") else path
    assert compose([f"data.path={quoted}"])["data"]["path"] == path


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("1", 1),
        ("1.0", 1.0),
        ("1e-3", 1e-3),
        ("1_000", 1000),
        ("'1'", "1"),
        ('"a: b"', "a: b"),
        ("true", True),
        ("NULL", None),
        ("on", "on"),
        ("007", "007"),
        ("2026-01-02", "2026-01-02"),
        ("[1, a, 'b c', {d: 1e3}]", [1, "a", "b c", {"d": 1e3}]),
        ("", ""),
        ("x" * 9_000, "x" * 9_000),
    ],
)
def test_what_a_value_stands_for(given: str, value: object) -> None:
    found = parse_word(f"key={given}").value
    assert (found, type(found)) == (value, type(value))


def test_choices_of_ones_own_are_found_whatever_the_folder_s_name(tmp_path: Path) -> None:
    mine = tmp_path / "it's mine, ä"
    (mine / "optimizer").mkdir(parents=True)
    (mine / "code.py").touch()
    text = "defaults: [adamw]\n_target_: trainer.optimizers.adamw\nlr: 0.5\n"
    (mine / "optimizer" / "big.yaml").write_text(text)
    word = f"code={mine}"
    assert compose([word, "optimizer=big"])["optimizer"]["lr"] == 0.5
    with pytest.raises(BadInput, match=r"^optimizer=bgi: must be one of big, "):
        compose([word, "optimizer=bgi"])


def test_a_yaml_of_ones_own_that_is_damaged_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "code.py").touch()
    for text in ("lr: [", "defaults: [nowhere]", "- a"):
        (tmp_path / "optimizer" / "mine.yaml").write_text(text)
        with pytest.raises(BadInput) as refused:
            compose([f"code={tmp_path}", "optimizer=mine"])
        assert "optimizer=" in str(refused.value)
        assert "\n" not in str(refused.value)
