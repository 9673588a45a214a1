"""The user's own code may fail, end the process or never end: one line says so, and where."""

import json
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from pipegap.trainer.__main__ import main
from pipegap.trainer.base import code
from tests.support import small

FACTORIES = """\
import os, sys, time
def model(*, vocab_size: int = 257, **_): return 5
def data(*, path: str = "", **_): return 5
def optimizer(parameters, *, lr: float = 0.1, weight_decay: float = 0.0): return 5
def correction(num_updates, lags): return 5
def lr_schedule(num_updates): return 5
def pipeline(num_updates, *, num_stages: int = 1, num_microbatches: int = 1): return 5
def raises(num_updates): raise ValueError("two\\nlines")
def exits(num_updates): sys.exit(0)
def ends(num_updates): os._exit(0)
def base(num_updates): raise BaseException("no Exception")
def mute(num_updates): raise type("Mute", (Exception,), {"__str__": lambda self: 1 / 0})()
"""
MODULES = {
    "sys.exit(0)": "it would end this process, with exit code 0, {file}:2",
    "import os; os._exit(0)": "it would end this process, with exit code 0, {file}:2",
    "while True: pass": "it takes more than 0.3 s, {file}:2",
    "\nwhile True:\n try:\n  [].x\n except Exception:\n  pass": "it takes more than 0.3 s, {file}:",
}
KINDS = {
    **{"model": "Recipe", "data": "Source", "optimizer": "Optimizer"},
    **{"correction": "NoCorrection", "lr_schedule": "LrFactor", "pipeline": "Schedule"},
}


def refusal(
    folder: Path, source: str, group: str, name: str, capsys: pytest.CaptureFixture[str]
) -> str:
    """The line with which a trial ends that has this choice of the user's own."""
    module = f"own_code_{uuid4().hex}"  # imported by no test before
    (folder / "mine").mkdir()
    (folder / "mine" / f"{module}.py").write_text(source)
    config = small.config(folder, f"out={folder / 'out'}")
    config |= {
        "code": str(folder / "mine"),
        "choices": None,
        group: {"_target_": f"{module}.{name}"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        assert main(["--config", str(folder / "config.json")]) == 2
    printed = capsys.readouterr()
    assert (printed.err.count("\n"), printed.out) == (1, "")
    assert not (folder / "out").exists()
    assert f"{group}._target_={module}.{name}: must " in printed.err
    return printed.err.replace(str(folder / "mine" / f"{module}.py"), "{file}")


@pytest.mark.parametrize("statement", MODULES)
def test_a_module_that_ends_the_process_or_never_ends(
    statement: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(code, "WITHIN", 0.3)
    line = refusal(tmp_path, f"import sys\n{statement}\n", "lr_schedule", "any", capsys)
    assert MODULES[statement] in line


@pytest.mark.parametrize("group", KINDS)
def test_a_factory_that_makes_something_else(
    group: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(tmp_path, FACTORIES, group, group, capsys)
    assert f"must make a {KINDS[group]} (" in line
    assert "this one lacks " in line


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", r"fails: ValueError: two\nlines, {file}:8"),
        ("exits", "fails: RuntimeError: it would end this process, with exit code 0, {file}:9"),
        ("ends", "fails: RuntimeError: it would end this process, with exit code 0, {file}:10"),
        ("base", "fails: RuntimeError: it raises BaseException: no Exception, {file}:11"),
        ("mute", "fails: Mute: its __str__ raises ZeroDivisionError, {file}:12"),
    ],
)
def test_a_factory_that_fails(
    name: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refusal(tmp_path, FACTORIES, "lr_schedule", name, capsys)


def test_a_hook_of_another_library_is_not_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = sys.exit

    def hook(status: int) -> None:
        ends(status)

    monkeypatch.setattr(sys, "exit", hook)
    line = refusal(tmp_path, FACTORIES, "lr_schedule", "exits", capsys)
    assert "with exit code 0, {file}:9" in line


def test_a_pipeline_without_its_keywords(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(tmp_path, FACTORIES, "pipeline", "lr_schedule", capsys)
    assert "must take the keyword num_stages" in line
