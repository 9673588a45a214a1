"""One thread per test process: bitwise equality must not depend on how a sum was split."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from hypothesis import settings

from pipegap import sweeps  # noqa: F401  before Ray, which reads variables that it sets when it is imported
from pipegap.trainer.config import compose
from pipegap.trainer.ranks import spawn
from tests.support.choices import composed

pytest_plugins = ["tests.support.processes"]
compose._compose = composed  # also for tables of cases, which are made before any fixture

LACKS_KERNEL = "pack_vnni2 is only supported when avx512 is supported"
"""What torch says of bf16 products that it packs for a processor and cannot pack."""
settings.register_profile("no deadline", deadline=None)  # a slow machine fails no test
settings.load_profile("no deadline")

# A job in a shell's background ignores the one, under nohup the other, and so would every trial
# that a test starts and sends it to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--examples", type=int, help="odd inputs of each kind, drawn anew")


def pytest_configure(config: pytest.Config) -> None:
    if number := config.getoption("--examples"):
        from tests.support import fuzzing

        fuzzing.NUM_EXAMPLES.append(number)


@pytest.hookimpl(trylast=True)  # after the random order
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones begin first: one that began last would leave the other cores without work."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    """Modules and tests are no garbage: each trial collects that, and would look at all of them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def imported_once() -> Iterator[None]:
    """What ranks of the tests import late or for themselves: once per process, and not per rank."""
    more = ["tests.support.gangs", "tests.support.torch_pipeline", "pytorch_optimizer"]
    more += ["pipegap.trainer.trial", "pytest"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spawn, "PRELOAD", [*spawn.PRELOAD, *more])
        yield


@pytest.fixture(autouse=True, scope="session")
def without_the_disk() -> Iterator[None]:
    """Nobody cuts the power of these tests: what this process writes need not reach the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Skips a test for which torch itself lacks a kernel, as with ATEN_CPU_CAPABILITY=default on a
    processor whose AMX its bf16 attention would use."""
    try:
        return (yield)
    except Exception as error:
        if LACKS_KERNEL not in str(error):
            raise
        pytest.skip(f"torch has no such kernel here: {LACKS_KERNEL}")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def without_figures() -> Iterator[None]:
    """The reports that this process makes have no figures, which other tests look at."""
    from tests.support.pages import with_figures  # slow: only imported where a report is made

    with with_figures([]):
        yield


@pytest.fixture
def few_figures() -> Iterator[None]:
    """A report has a few figures alone, and pictures of them on its page only: enough for tests of
    its words and tables, in a third of the time."""
    from tests.support.pages import FEW, with_figures

    with with_figures(FEW):
        yield


@pytest.fixture
def one_rank() -> Iterator[None]:
    """This process is the only rank of a process group, of gloo."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Prints the word that repeats this random order: -q leaves out the header, where it stands."""
    if seed := config.getoption("randomly_seed", None):
        terminalreporter.write_line(f"order: --randomly-seed={seed}")
