"""`pytest tests/fuzz --examples N` tries N inputs of each kind, and prints how they ended."""

import pytest

from tests.support import fuzzing


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--examples", type=int, help="inputs of each kind, drawn anew")


def pytest_configure(config: pytest.Config) -> None:
    if asked := config.getoption("--examples", None):
        fuzzing.budget["inputs"] = asked


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.getoption("--examples", None):
        terminalreporter.write_line(fuzzing.table())
