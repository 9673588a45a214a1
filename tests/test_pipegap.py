"""The front package: public names of two packages, and the commands of all."""

import re
import sys
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

import pipegap
from pipegap.__main__ import DOES, GROUPS, PROGRAMS, run
from pipegap.analysis.commands import COMMANDS as OF_ANALYSIS
from pipegap.sweeps.commands import COMMANDS as OF_SWEEPS
from tests.support.processes import python


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program changes where its process, and those that it starts, look for modules."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONSAFEPATH", "")


@pytest.mark.parametrize("name", pipegap.__all__)
def test_a_name_is_what_its_module_has(name: str) -> None:
    if name == "Megatron2BW" and not find_spec("megatron"):
        with pytest.raises(ModuleNotFoundError) as refusal:
            getattr(pipegap, name)
        assert refusal.value.__notes__ == [f"{name} needs it: pip install 'pipegap[megatron]'"]
        return
    found = getattr(pipegap, name)
    assert found.__name__ == name
    assert found.__module__.startswith(("pipegap.trainer.", "pipegap.analysis"))


def test_a_name_that_nobody_has() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nobody'"):
        pipegap.nobody  # noqa: B018


def test_every_command_has_its_own_name_here() -> None:
    assert set(PROGRAMS) == {*OF_SWEEPS, *OF_ANALYSIS, "trial", "data"}
    assert list(PROGRAMS) == list(DOES)
    assert sorted(PROGRAMS) == sorted(name for names in GROUPS.values() for name in names)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_command_has_an_example_and_keys_of_one_form(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`key=` at the beginning of its line, never `key` alone."""
    module, *words = PROGRAMS[name]
    main = import_module(f"{module}.__main__").main
    with suppress(SystemExit):
        main([*words, "--help"])
    text = capsys.readouterr().out
    assert f"\ne.g. pipegap {name}" in text
    keys = text.partition("show this help message and exit")[2]
    assert not re.search(r"^(?:results|format|out|sweep|optimizer) +\w", keys, re.MULTILINE)


@pytest.mark.filterwarnings("ignore:Pydantic V1 style")  # of a library of the dashboard
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "trial"])
def test_a_word_that_a_command_refuses_to_go_without_is_marked_in_its_help(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trial goes without any word."""
    module, *words = PROGRAMS[name]
    main = import_module(f"{module}.__main__").main
    monkeypatch.chdir(tmp_path)
    with suppress(SystemExit):
        main([*words, "results=there-is-none"] if name == "rerun" else words)
    missing = re.match(rf"pipegap {name}: ([\w.]+)=: must ", capsys.readouterr().err)
    with suppress(SystemExit):
        main([*words, "--help"])
    lines = capsys.readouterr().out.splitlines()
    marked = [line for line in lines if "(required" in line]
    if missing is None:
        assert not marked
    elif missing[1] == name:  # which must choose among trials or jobs
        assert marked
    else:
        of_word = [line for line in lines if re.search(rf"\b{missing[1]}[=:] ", line)]
        assert any("(required" in line or "(default: RAY_" in line for line in of_word), of_word


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        (["trial", "seed=1"], ("pipegap.trainer", ["seed=1"])),
        (["sweep", "sweep=main"], ("pipegap.sweeps", ["sweep", "sweep=main"])),
        (["status", "sweep=main"], ("pipegap.sweeps", ["status", "sweep=main"])),
        (["report"], ("pipegap.analysis", ["report"])),
        (["advise", "stages=4"], ("pipegap.analysis", ["advise", "stages=4"])),
        (["data", "wiki"], ("pipegap.trainer.data", ["wiki"])),
    ],
)
def test_a_command_runs_with_its_words(
    words: list[str], runs: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(sys, "argv", ["pipegap", *words])
    monkeypatch.setattr(
        "pipegap.__main__.run_module", lambda module, **_: ran.append((module, sys.argv[1:]))
    )
    assert run() == 0
    assert ran == [runs]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("advice", "must be a command, such as advise, see pipegap --help"),
        ("forecast", "was dropped in 0.3.0; stay with 0.2 to run it, see pipegap --help"),
    ],
)
def test_no_command_is_refused_in_one_line(
    name: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pipegap", name])
    assert run() == 2
    assert capsys.readouterr().err == f"pipegap: {name}: {says}\n"


def test_the_version_is_the_installed_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pipegap", "--version"])
    assert run() == 0
    assert capsys.readouterr().out == f"pipegap {version('pipegap')}\n"


def test_a_file_of_the_working_folder_hides_nothing_installed(tmp_path: Path) -> None:
    """In this process and in those that it starts; modules of one's own are found after all."""
    for name in ("yaml", "omegaconf", "torch"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('the file of a user')")
    (tmp_path / "mine.py").write_text(
        "import subprocess, sys\n"
        "from pipegap.trainer.lr import constant\n"
        "subprocess.run([sys.executable, '-c', 'import torch, yaml'], check=True)\n"
    )
    words = ["trial", "--cfg", "lr_schedule=constant", "lr_schedule._target_=mine.constant"]
    done = python("-m", "pipegap", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert '"_target_": "mine.constant"' in done.stdout


def test_it_ends_as_the_command_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pipegap", "trial", "optimizer.lr=-1"])
    monkeypatch.delitem(sys.modules, "pipegap.trainer.__main__", raising=False)  # of another test
    with pytest.raises(SystemExit, match="2"):
        run()
    assert "optimizer.lr=-1" in capsys.readouterr().err
