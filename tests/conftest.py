"""One thread per test process: bitwise equality must not depend on how a sum was split."""

from __future__ import annotations

import signal

import pytest
import torch
from hypothesis import settings

pytest_plugins = ["tests.support.refusals"]

settings.register_profile("no deadline", deadline=None)  # a slow machine fails no test
settings.load_profile("no deadline")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A job in a shell's background, and every trial that a test starts and interrupts, ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Prints the word that repeats this random order: -q leaves out the header, where it stands."""
    if seed := config.getoption("randomly_seed", None):
        terminalreporter.write_line(f"order: --randomly-seed={seed}")
