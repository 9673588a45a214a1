"""A trial leaves the process as it found it; ranks have their devices; cores are counted."""

import gc
import json
import os
import pickle
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from pipegap.trainer.base import atomic
from pipegap.trainer.base.atomic import (
    clean,
    create_json,
    partial,
    partials,
    write_atomically,
    write_json,
)
from pipegap.trainer.base.children import Worker, compiling, num_cores, scratch, socket_base
from pipegap.trainer.base.cli import STOPS
from pipegap.trainer.base.errors import BadInput, Stopped
from pipegap.trainer.base.resources import (
    MANY_OBJECTS,
    on_cpu,
    rank_device,
    reproducible,
    reset_peak_memory,
)
from tests.support.processes import holding, python


def test_the_generator_goes_on_from_where_it_was() -> None:
    torch.manual_seed(5)
    torch.rand(3)
    before = torch.get_rng_state()
    with reproducible(7, 1):
        first = torch.rand(3)
        with suppress(KeyError), reproducible(7, 1):
            assert torch.equal(torch.rand(3), first)
            raise KeyError
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.initial_seed() == 5


def test_a_part_of_a_vector_is_sent_without_the_vector() -> None:
    vector = torch.arange(100_000.0)
    parts = {"master": vector[:8], "slots": [vector[:8], vector[8:16]]}
    sent = pickle.dumps(on_cpu(parts))
    assert len(sent) < 5_000
    there = pickle.loads(sent)
    assert torch.equal(there["slots"][1], vector[8:16])
    assert there["slots"][0] is there["master"]


def test_what_was_imported_is_not_looked_at_before_every_trial() -> None:
    imported: list[list[int]] = [[] for _ in range(2 * MANY_OBJECTS)]
    reset_peak_memory(torch.device("cpu"))
    assert len(gc.get_objects()) <= MANY_OBJECTS
    assert imported


@pytest.mark.parametrize("asked", ["1", "0"])
def test_ranks_share_a_gpu_where_nccl_takes_that(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", dict(os.environ))
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", asked)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "16")
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    own = [rank_device("cuda", rank, 2) for rank in range(2)]
    assert own == [torch.device("cuda:0"), torch.device("cuda:1")]
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "16", "the environment goes before"
    assert os.environ["CUDA_MODULE_LOADING"] == "EAGER"
    assert rank_device("cuda:1", 0, 1) == torch.device("cuda:1")
    if asked == "1":
        assert rank_device("cuda:1", 0, 2) == torch.device("cuda:1")
    else:
        with pytest.raises(BadInput, match="device=cuda:1: must be cuda, a GPU per rank"):
            rank_device("cuda:1", 0, 2)


OWN = {"cgroup": "1:name=systemd:/x\n0::/job/step\n"}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        (OWN | {"cpu.max": "300000 100000\n"}, 3),
        (OWN | {"job/cpu.max": "250000 100000\n", "job/step/cpu.max": "max 100000\n"}, 2),
        (OWN | {"job/step/cpu.max": "50000 100000\n"}, 1),
        (OWN | {"job/cpu.max": "1600000 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_the_smallest_limit_counts(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)})
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert num_cores(tmp_path, tmp_path / "cgroup") == cores


# Work in the worker: done when the context ends, in order, and its errors are not lost.


def test_all_is_done_in_order_when_the_context_ends(tmp_path: Path) -> None:
    with Worker() as worker:
        worker.do(os.mkdir, tmp_path / "outer")
        worker.do(os.mkdir, tmp_path / "outer" / "inner", mode=0o700)
    assert (tmp_path / "outer" / "inner").is_dir()


def test_who_waits_sees_what_was_begun_or_its_error(tmp_path: Path) -> None:
    with Worker() as worker:
        worker.do(os.mkdir, tmp_path / "now")
        worker.wait()
        assert (tmp_path / "now").is_dir()
    with pytest.raises(FileExistsError), Worker() as worker:  # noqa: PT012
        worker.do(os.mkdir, tmp_path)
        worker.wait()
        pytest.fail("nothing was raised")


def test_without_a_worker_all_is_done_at_once(tmp_path: Path) -> None:
    with Worker(apart=False) as worker:
        worker.do(os.mkdir, tmp_path / "now")
        assert (tmp_path / "now").is_dir()


def test_what_went_wrong_there_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError), Worker() as worker:
        worker.do(os.mkdir, tmp_path)


def test_what_has_not_begun_is_left_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _interrupted(tmp_path)
    assert not (tmp_path / "49").exists()


def _interrupted(folder: Path) -> None:
    with Worker() as worker:
        for name in map(str, range(50)):
            worker.do(os.mkdir, folder / name)
        raise KeyboardInterrupt


# What a killed process left in the temporary folder goes at the next start, and nothing else.

PROCESS = """
import sys
import time
from pathlib import Path
from pipegap.trainer.base.children import scratch
with scratch(Path(sys.argv[1]), "ours-") as folder:
    (folder / "session").mkdir()
    print(folder, flush=True)
    time.sleep(600)
"""


PREFIX = "ours-"


def test_folders_of_killed_processes_are_deleted_and_those_of_living_ones_stay(
    tmp_path: Path,
) -> None:
    with holding(PROCESS, str(tmp_path)) as (process, said):
        theirs = Path(said)
        (tmp_path / "another's").mkdir()
        with scratch(tmp_path, PREFIX) as mine:
            assert mine.parent == theirs.parent == tmp_path
            assert (theirs / "session").is_dir()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert theirs.is_dir()
        with scratch(tmp_path, PREFIX) as mine:
            assert {path.name for path in tmp_path.iterdir()} == {mine.name, "another's"}
    assert [path.name for path in tmp_path.iterdir()] == ["another's"]


def test_after_an_error_the_logs_stay_until_the_next_start(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), scratch(tmp_path, PREFIX) as failed:
        raise RuntimeError
    assert failed.is_dir()
    with scratch(tmp_path, PREFIX):
        assert not failed.exists()


def test_a_link_in_the_temporary_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").touch()
    (tmp_path / f"{PREFIX}evil").symlink_to(tmp_path / "elsewhere")
    with scratch(tmp_path, PREFIX):
        assert (tmp_path / "elsewhere" / "precious").exists()


@pytest.mark.parametrize(
    ("wanted", "of_process", "taken"),
    [
        ("/tmp/é", "/tmp/b", "/tmp"),
        ("/tmp/" + "a" * 40, "/tmp/b", "/tmp"),
        ("/tmp/a", "/tmp/b", "/tmp/a"),
        ("", "/tmp/b", "/tmp/b"),
        ("", "/tmp/" + "b" * 100, "/tmp"),
    ],
)
def test_sockets_lie_where_their_paths_are_short(
    wanted: str, of_process: str, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", of_process)
    assert socket_base(wanted) == Path(taken)


# A process that was killed while it compiled does not fail the next one.

GROUP = """
import os, signal, subprocess, sys, time
from types import SimpleNamespace
from pipegap.trainer.base.cli import stopping
from pipegap.trainer.base.children import compiling
said_by_torch = SimpleNamespace(cache_dir=lambda: os.environ["TORCHINDUCTOR_CACHE_DIR"])
sys.modules["torch._inductor.runtime.cache_dir_utils"] = said_by_torch
os.setpgid(0, 0)
signal.signal(int(sys.argv[1]), signal.SIG_DFL)  # under nohup, SIGHUP is ignored from the start
with stopping("stops") as asked_to_stop, compiling():
    compiler = subprocess.Popen(["sh", "-c", "echo runs; read line; exit 7"], stdin=-1, stdout=-1)
    compiler.stdout.readline()
    os.killpg(0, int(sys.argv[1]))
    compiler.communicate(b"go on")
    # Another thread of this process may get the signal, and Python handles it here a moment later.
    deadline = time.monotonic() + 60
    while not asked_to_stop() and time.monotonic() < deadline:
        time.sleep(0.01)
    print(compiler.returncode, asked_to_stop())
os.kill(os.getpid(), int(sys.argv[1]))
"""
MARKED = """
import os, sys, time
from types import SimpleNamespace
from pipegap.trainer.base.children import compiling
said_by_torch = SimpleNamespace(cache_dir=lambda: os.environ["TORCHINDUCTOR_CACHE_DIR"])
sys.modules["torch._inductor.runtime.cache_dir_utils"] = said_by_torch
with compiling():
    print("marked", flush=True)
    time.sleep(600)
"""
"""Without the compiler, whose import takes seconds."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("number", STOPS)
def test_a_signal_for_the_whole_group_asks_and_lets_a_compiler_end(number: int) -> None:
    """After that it acts as usual."""
    done = python("-c", GROUP, str(int(number)))
    assert done.stdout == "7 True\n", done.stderr
    assert done.returncode == -number


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    """Another process that compiles."""
    with holding(MARKED) as (process, _):
        yield process


def test_what_a_killed_process_wrote_in_place_is_deleted(
    folder: Path, other: subprocess.Popen[str]
) -> None:
    for name in ("old.so", "new.so", "new.h.gch", "new.py"):
        (folder / name).touch()
    os.utime(folder / "old.so", (0, 0))
    before = names(folder)
    with compiling():
        assert names(folder) > before  # the other one lives
    other.send_signal(signal.SIGKILL)
    other.wait()
    with compiling():
        pass
    assert names(folder) == {"old.so", "new.py"}


@pytest.mark.parametrize(
    ("error", "cause", "kept"),
    [(Stopped(1), None, {"a.so"}), (Stopped(1), ValueError(), set()), (ValueError(), None, set())],
)
def test_a_process_that_stops_when_asked_leaves_whole_files(
    folder: Path, error: Exception, cause: Exception | None, kept: set[str]
) -> None:
    """Not one that stops since something failed."""

    def write() -> None:
        with compiling():
            (folder / "a.so").touch()
            raise error from cause

    with pytest.raises(type(error)):
        write()
    with compiling():
        assert names(folder) & {"a.so"} == kept


# A file is whole under its name, whoever else writes it, and temporary files do not pile up.


def test_of_many_writers_each_succeeds_and_the_file_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file.json"

    def write(number: int) -> None:
        write_json(path, [number] * 1000)
        first, *others = json.loads(path.read_text())
        assert {first} == {*others}

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(100)))
    assert partials(tmp_path) == []


@pytest.mark.parametrize("has_links", [True, False])
def test_of_many_who_create_a_file_one_does(
    has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those for whom it was not there a moment before."""
    path = tmp_path / "file.json"
    if has_links:
        monkeypatch.setattr(Path, "exists", lambda path: False)
    else:
        monkeypatch.setattr(atomic.os, "link", lambda *paths: os.open("/proc/self/nothing", 0))

    def creates(number: int) -> bool:
        try:
            create_json(path, number)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(4 if has_links else 1) as pool:
        created = [*pool.map(creates, range(20))]
    assert created.count(True) == 1
    assert json.loads(path.read_text()) == created.index(True)
    assert [*tmp_path.iterdir()] == [path]


def test_content_name_and_nothing_else_are_on_the_disk_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename that is not on the disk is lost with the machine's power."""
    path, synced = tmp_path / "file", []
    fsync = os.fsync

    def spy(opened: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{opened}")), path.exists()))
        fsync(opened)

    monkeypatch.setattr(atomic.os, "fsync", spy)
    write_atomically(path, b"content")
    [(first, was_there), (second, is_there)] = synced
    assert first.name.startswith(".file.")
    assert not was_there
    assert (second, is_there) == (tmp_path, True)


def test_what_is_not_permitted_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def refuse() -> None:
        assert len(partials(tmp_path)) == 1, "asked last, after the content is written"
        raise PermissionError

    with pytest.raises(PermissionError):
        write_atomically(path, b"after", refuse)
    assert path.read_text() == "before"
    assert [*tmp_path.iterdir()] == [path]


def test_only_what_nobody_writes_any_more_is_cleaned(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.touch()
    left = tmp_path / ".checkpoint-.4711.partial"  # as older code named it
    left.touch()
    os.utime(left, ns=(0, 0))
    with partial(tmp_path, "file") as (filled, file):
        file.write(b"half")
        clean(tmp_path, before_ns=filled.stat().st_mtime_ns)
        assert {*tmp_path.iterdir()} == {kept, filled}
