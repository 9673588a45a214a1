"""Which tests execute which lines, and how long each takes: found once per file of tests."""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import context
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

import coverage
import coverage.exceptions

from bench.mutations.mutants import Mutant
from bench.mutations.sandbox import Sandbox

ENVIRONMENT = "PIPEGAP_TEST"
"""Tells processes that a test starts which one it is."""
SLOWEST = 90.0
"""Seconds that a test may take to be used."""
END_TIMEOUT = 5.0
START_OF_PROCESS = "import coverage\ncoverage.process_startup()\n"


@dataclass(frozen=True)
class Reach:
    """Of one test."""

    seconds: float
    lines: Mapping[str, frozenset[int]]
    """File → the lines that the test executes, those of its processes included."""


def reaches(
    sandbox: Sandbox, files: Sequence[str], rooms: Sequence[str], left_out: Sequence[str], out: Path
) -> dict[str, Reach]:
    """By test; measured again where the file of tests, or one that it executes, changed."""
    out.mkdir(parents=True, exist_ok=True)
    shared = _digest(sandbox.folder, ["tests/support", "tests/oracles"])
    found: dict[str, Reach] = {}
    for file in files:
        kept = out / f"{file.replace('/', '.')}.json"
        known = json.loads(kept.read_text()) if kept.exists() else {}
        deselected = [f"--deselect={test}" for test in left_out if test.startswith(file)]
        key = [shared, deselected]
        if known.get("key") != key or known["of"] != _digests(sandbox.folder, known["of"]):
            tests, failed = _measure(sandbox, file, rooms, deselected, out)
            executed = {path for _, lines in tests.values() for path in lines}
            known = {"key": key, "of": _digests(sandbox.folder, {file, *executed}), "tests": tests}
            kept.write_text(json.dumps(known))
            print(f"{file}: {len(tests)} tests {failed}", flush=True)
        for test, (seconds, lines) in known["tests"].items():
            of = {path: frozenset(numbers) for path, numbers in lines.items()}
            found[test] = Reach(seconds, of)
    return found


def _digest(folder: Path, parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        for path in sorted((folder / part).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _digests(folder: Path, files: Iterable[str]) -> dict[str, str]:
    """By file; empty if there is no such file."""
    return {
        file: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for file in sorted(files)
        for path in [folder / file]
    }


class _Contexts:
    """A plugin that tells coverage, here and in the processes to come, which test runs."""

    def __init__(self) -> None:
        self.coverage: coverage.Coverage | None = None

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        os.environ[ENVIRONMENT] = nodeid
        assert self.coverage is not None
        self.coverage.switch_context(nodeid)

    def pytest_sessionfinish(self) -> None:
        assert self.coverage is not None
        self.coverage.stop()
        self.coverage.save()


def _measure(
    sandbox: Sandbox, file: str, rooms: Sequence[str], words: Sequence[str], out: Path
) -> tuple[dict[str, tuple[float, dict[str, list[int]]]], str]:
    """(test → seconds and lines, the first failure)."""
    plugin, start = _Contexts(), sandbox.folder / "sitecustomize.py"
    with TemporaryDirectory(prefix="pipegap-coverage-") as temporary:
        folder = Path(temporary)
        settings = folder / "settings"
        settings.write_text(_settings(folder, [sandbox.folder / room for room in rooms]))

        def measured() -> None:
            os.environ["COVERAGE_PROCESS_START"] = str(settings)
            plugin.coverage = coverage.Coverage(config_file=str(settings), context="")
            plugin.coverage.start()
            _measure_ranks()

        start.write_text(START_OF_PROCESS)
        try:
            log = out / f"{file.replace('/', '.')}.log"
            outcome = sandbox.run(
                [file], lambda test: 10 * SLOWEST, log, plugin, words=words, before=measured
            )
        finally:
            start.unlink()
        lines = _lines_by_test(folder, sandbox.folder)
    quick = {test: s for test, s in outcome.seconds.items() if s <= SLOWEST}
    return {test: (s, lines.get(test, {})) for test, s in quick.items()}, outcome.failed


def _settings(folder: Path, sources: Sequence[Path]) -> str:
    listed = "".join(f"\n    {source}" for source in sources)
    return (
        f"[run]\nsource ={listed}\ndata_file = {folder / 'data'}\nparallel = true\n"
        f"sigterm = true\npatch = _exit\ncontext = ${{{ENVIRONMENT}-}}\n"
    )


def _measure_ranks() -> None:
    """Starts each rank as a new process, and gives it time to write what it executed.

    A fork of an earlier test's server would count as executed by that test.
    """
    context.ForkServerContext = context.SpawnContext  # type: ignore[misc, assignment]
    kill = context.SpawnProcess.kill

    def kill_later(process: BaseProcess) -> None:
        process.join(END_TIMEOUT)
        kill(process)

    context.SpawnProcess.kill = kill_later  # type: ignore[method-assign, assignment]


def _lines_by_test(folder: Path, root: Path) -> dict[str, dict[str, list[int]]]:
    """Reads what coverage left in the folder."""
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for path in folder.glob("data.*"):
        data = coverage.CoverageData(str(path))
        try:
            data.read()
        except coverage.exceptions.DataError:  # its process was killed while it wrote
            continue
        for file in data.measured_files():
            name = str(Path(file).relative_to(root))
            for line, contexts in data.contexts_by_lineno(file).items():
                for test in contexts:
                    found[test.strip("|")][name].append(line)
        data.close()
    return found


def in_order(mutant: Mutant, known: Mapping[str, Reach], seconds: float) -> list[str]:
    """The tests that may notice the mutant, quickest first, up to so many `seconds` of them.

    Those that execute its statement come first, the first case of each function before the others.
    The rest of their files follows: they may see the effect by a fixture that was made earlier.
    """
    reach = {
        test
        for test, of in known.items()
        if (lines := of.lines.get(mutant.path))
        and (mutant.on_import or not lines.isdisjoint(mutant.lines))
    }
    files = {_file(test) for test in reach}
    beside = {test for test in known if _file(test) in files} - reach
    chosen: list[str] = []
    for group in (reach, beside):
        for test in _first_cases_first(group, known):
            seconds -= known[test].seconds
            if seconds < 0 and chosen:
                return chosen
            chosen.append(test)
    return chosen


def _file(test: str) -> str:
    return test.partition("::")[0]


def _first_cases_first(tests: Iterable[str], known: Mapping[str, Reach]) -> list[str]:
    """Sorted by the number of the case of its function, quickest first, and then by time."""
    seen: dict[str, int] = defaultdict(int)
    numbered = []
    for test in sorted(tests, key=lambda one: (known[one].seconds, one)):
        function = test.partition("[")[0]
        numbered.append((seen[function], known[test].seconds, test))
        seen[function] += 1
    return [test for _, _, test in sorted(numbered)]
