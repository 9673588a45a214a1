"""`pytest tests/fuzz --examples N` tries N inputs of each kind, drawn anew."""

import pytest

from tests.support import fuzzing


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--examples", type=int, help="inputs of each kind, drawn anew")


def pytest_configure(config: pytest.Config) -> None:
    if number := config.getoption("--examples", None):
        fuzzing.asked.append(number)
