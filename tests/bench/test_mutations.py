"""Mutations of a toy repository: one that its test notices, one that it cannot, one untested."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.mutations.__main__ import VERDICTS, attempt, first_failure
from bench.mutations.mutants import Mutant, mutants
from bench.mutations.reach import Reach, in_order, reaches
from bench.mutations.sandbox import Sandbox
from bench.mutations.score import Status, Verdict, read_verdicts, score
from trainer.base.places import CODE_ROOT

CODE = '''"""A toy."""


def larger(one: int | None, other: int = 0) -> int:
    assert one is not None
    if one > other:
        return one
    return other


def unused(one: int) -> int:
    return one + 1
'''
TEST = """import subprocess, sys, time
from pathlib import Path

from toy.code import larger


def test_in_process():
    assert larger(1) == 1
    assert larger(-1) == 0


def test_in_another_process():
    code = "from toy.code import larger; print(larger(2, 3))"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert int(said.stdout) == 3


def hangs():
    time.sleep(60)


def hangs_once():
    if not Path("here").exists():
        Path("here").touch()
        time.sleep(60)
"""
SETTINGS = '[tool.pytest.ini_options]\npython_functions = ["test_*", "hangs*"]\n'
FILE, IN_PROCESS = "tests/test_toy.py", "tests/test_toy.py::test_in_process"
IN_ANOTHER = "tests/test_toy.py::test_in_another_process"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for path, text in (("toy/code.py", CODE), (FILE, TEST), ("pyproject.toml", SETTINGS)):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    (folder / "data").mkdir()
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def sandbox(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    return Sandbox(root, tmp_path_factory.mktemp("scratch") / "copy")


@pytest.fixture(scope="module")
def known(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reach]:
    left_out = [f"{FILE}::hangs", f"{FILE}::hangs_once"]
    return reaches(sandbox, [FILE], ["toy"], left_out, tmp_path_factory.mktemp("reach"))


def edits(root: Path, source: str) -> set[tuple[str, str]]:
    (root / "toy/other.py").write_text(source)
    return {(one.old, one.new) for one in mutants(root / "toy/other.py", root)}


def mutant(root: Path, old: str, new: str) -> Mutant:
    found = [one for one in mutants(root / "toy/code.py", root) if (one.old, one.new) == (old, new)]
    return found[0]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = λ - 1", {"x = λ + 1", "x = λ - 2"}),
        ("x = a <= (b)", {"x = a < (b)", "x = a > (b)"}),
        ("x = a not  in b", {"x = a in b"}),
        ("x = not a", {"x = (a)"}),
        ("x = p[-age]", {"x = p[(-age) + 1]", "x = p[(age)]"}),
        ("x = p[:end]", {"x = p[:(end) + 1]"}),
        ("x = f(a, b, strict=True)", {"x = f(b, a, strict=True)"}),
        ("x = max(a, b)", {"x = min(a, b)"}),
        ("x += a", {"x -= a", "x = a", "pass"}),
        ("while a:\n    break", {"continue"}),
        (
            "def f(x: int = 1): return x",
            {"def f(x: int = 2): return x", "def f(x: int = 1): return None"},
        ),
        ("def f():\n    x = 1\n    x = a\n    return x", {"x = 2", "pass", "return None"}),
        ("if a: b()", {"if not (a): b()", "if a: pass"}),
    ],
)
def test_every_kind(root: Path, source: str, expected: set[str]) -> None:
    assert {" ".join(new.split()) for _, new in edits(root, source)} == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""Words."""',
        "def f(x: Annotated[int, Ge(0)]) -> Literal[1]: ...",
        "Number = Annotated[int, Ge(0)] | Annotated[float, Ge(0)]",
        "assert a > 1, f(a, b)",
        "__all__ = [*a, *b + c]",
        "if TYPE_CHECKING:\n    x = 1 + 1",
        'x = f"{a + 1} words"',
    ],
)
def test_what_no_test_should_notice_is_left_alone(root: Path, source: str) -> None:
    assert not edits(root, source)


def test_lines_are_found_in_this_process_and_in_others(known: dict[str, Reach]) -> None:
    numbers = {line: n for n, line in enumerate(CODE.splitlines(), 1)}
    greater, less = numbers["        return one"], numbers["    return other"]
    here, there = (known[test].lines["toy/code.py"] for test in (IN_PROCESS, IN_ANOTHER))
    assert {greater, less} <= here
    assert less in there
    assert greater not in there
    assert numbers["    return one + 1"] not in here | there


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ("if one > other:", "if one <= other:", Status.KILLED),
        ("if one > other:", "if one >= other:", Status.SURVIVED),  # equal numbers are equal
        ("return one + 1", "return one - 1", Status.NOT_REACHED),
        ("return other", "return None", Status.KILLED),
    ],
)
def test_a_mutant_is_killed_if_a_test_fails(
    root: Path,
    sandbox: Sandbox,
    known: dict[str, Reach],
    tmp_path: Path,
    old: str,
    new: str,
    status: Status,
) -> None:
    found = attempt(mutant(root, old, new), sandbox, known, 60.0, tmp_path / "log")
    assert found["status"] == status, (tmp_path / "log").read_text()
    assert (sandbox.folder / "toy/code.py").read_text() == CODE


def test_a_mutant_reaches_the_processes_of_a_test(
    root: Path, sandbox: Sandbox, known: dict[str, Reach], tmp_path: Path
) -> None:
    alone = {IN_ANOTHER: known[IN_ANOTHER]}
    one = mutant(root, "return other", "return None")
    assert attempt(one, sandbox, alone, 60.0, tmp_path / "log")["by"] == f"{IN_ANOTHER} (call)"


def test_what_hangs_is_ended(sandbox: Sandbox, tmp_path: Path) -> None:
    outcome = sandbox.run([f"{FILE}::hangs"], lambda test: 0.5, tmp_path / "log")
    assert outcome.failed == f"{FILE}::hangs (no end after 0.5 s)"


def test_what_hangs_once_on_a_busy_machine_is_no_failure(sandbox: Sandbox, tmp_path: Path) -> None:
    log = tmp_path / "log"
    tests = [IN_PROCESS, f"{FILE}::hangs_once"]
    assert first_failure(sandbox, tests, lambda test: 3.0, log) == ""
    (sandbox.folder / "here").unlink()
    failed = first_failure(sandbox, [f"{FILE}::hangs"], lambda test: 0.2, log)
    assert failed == f"{FILE}::hangs (no end after 0.6 s)"


def test_quick_tests_come_first_and_no_more_than_there_is_time_for(root: Path) -> None:
    lines = {"toy/code.py": frozenset({6})}
    known = {
        "a.py::slow": Reach(5.0, lines),
        "a.py::cases[1]": Reach(1.0, lines),
        "a.py::cases[2]": Reach(2.0, lines),
        "a.py::beside": Reach(0.1, {}),
        "b.py::elsewhere": Reach(0.1, {}),
    }
    one = mutant(root, "if one > other:", "if one >= other:")
    order = ["a.py::cases[1]", "a.py::slow", "a.py::cases[2]", "a.py::beside"]
    assert in_order(one, known, 100.0) == order
    assert in_order(one, known, 7.0) == order[:2]
    assert in_order(one, known, 0.5) == order[:1]


def test_a_verdict_takes_a_survivor_out_of_the_score(root: Path, tmp_path: Path) -> None:
    (tmp_path / "verdicts.yaml").write_text(
        "- {file: toy/code.py, function: larger, old: 'if one > other:', "
        "new: 'if one >= other:', why: equivalent, reason: equal numbers are equal}\n"
    )
    verdicts = read_verdicts(tmp_path / "verdicts.yaml")
    assert [*verdicts.values()] == [Verdict("equivalent", "equal numbers are equal")]
    tried = [
        (mutant(root, "if one > other:", "if one <= other:"), Status.KILLED),
        (mutant(root, "if one > other:", "if one >= other:"), Status.SURVIVED),
        (mutant(root, "return one + 1", "return one - 1"), Status.NOT_REACHED),
    ]
    assert str(score(tried, {})) == "33.3 % [6.1, 79.2]"
    found = score(tried, verdicts)
    assert (found.killed, found.survived, found.by_verdict) == (1, 1, {"equivalent": 1})


def test_every_verdict_is_of_code_that_is_still_there() -> None:
    verdicts = read_verdicts(VERDICTS)
    made = {
        (one.path, one.function, one.old.strip(), one.new.strip())
        for path in {place for place, *_ in verdicts}
        for one in mutants(CODE_ROOT / path, CODE_ROOT)
    }
    assert {*verdicts} <= made
