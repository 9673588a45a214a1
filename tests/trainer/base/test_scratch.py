"""What a killed process left in the temporary folder goes at the next start, and nothing else."""

import signal
import tempfile
from pathlib import Path

import pytest

from pipegap.trainer.base.scratch import scratch, socket_base
from tests.support.processes import holding

PROCESS = """
import sys
import time
from pathlib import Path
from pipegap.trainer.base.scratch import scratch
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
