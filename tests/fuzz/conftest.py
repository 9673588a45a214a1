"""`pytest tests/fuzz --examples N` tries N inputs of each kind, and prints how they ended."""

from collections import Counter
from typing import Any

import pytest

from tests.support import fuzzing


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--examples", type=int, help="inputs of each kind, drawn anew")


def pytest_configure(config: pytest.Config) -> None:
    if asked := config.getoption("--examples", None):
        fuzzing.budget["inputs"] = asked


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist sends what it counted to the process that prints the table."""
    if (sent := getattr(session.config, "workeroutput", None)) is not None:
        sent["ended"] = {kind: dict(counts) for kind, counts in fuzzing.ended.items()}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    for kind, counts in getattr(node, "workeroutput", {}).get("ended", {}).items():
        fuzzing.ended.setdefault(kind, Counter()).update(counts)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.getoption("--examples", None):
        terminalreporter.write_line(fuzzing.table())
