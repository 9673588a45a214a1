"""Odd but right words just work; what is no YAML is said in a line; `dtype=auto` is resolved."""

from pathlib import Path

import pytest
import torch

from pipegap.trainer.base.documents import NotRead, read
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.compose import compose
from pipegap.trainer.config.identity import trial_id
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
        ("12:30", "12:30"),
        (".inf", float("inf")),
        ("~", None),
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


FAST = {"avx512_f": True, "avx512_bf16": True}


@pytest.mark.parametrize(
    ("capabilities", "words", "expected"),
    [
        (FAST, (), "bfloat16"),
        ({"amx_bf16": True}, (), "bfloat16"),
        ({"avx512_f": True, "avx512_bf16": False}, (), "float32"),
        ({}, (), "float32"),
        (None, (), "float32"),  # a torch that cannot tell
        ({}, ("device=cuda",), "bfloat16"),
        (FAST, ("model=tiny_moe",), "float32"),  # experts are slow in bf16 on a CPU
        (FAST, ("model=tiny_moe", "device=cuda"), "bfloat16"),
    ],
)
def test_a_trial_has_the_dtype_that_its_processor_is_fast_in(
    capabilities: dict[str, bool] | None,
    words: tuple[str, ...],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    if capabilities is None:
        monkeypatch.delattr(torch.cpu, "get_capabilities")
    config = compose(["dtype=auto", *words])
    assert config["dtype"] == expected
    assert trial_id(config, "d") == trial_id(compose([f"dtype={expected}", *words]), "d")


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


def test_an_alias_stands_for_one_value() -> None:
    assert read("[&a 1, *a, {b: *a}]") == [1, 1, {"b": 1}]
