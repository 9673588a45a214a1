"""Which checkpoint a trial goes on from; one that is written meanwhile is the one of its moment."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Timer
from typing import Any

import pytest
import torch

from pipegap.trainer.base.atomic import always
from pipegap.trainer.base.errors import BadInput, LeaseLost
from pipegap.trainer.config.identity import made_by
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.folder import lease, record
from pipegap.trainer.folder.record import TrialFolder, copied
from pipegap.trainer.trial import run_trial
from tests.support import small_sweep
from tests.support.trials import assert_same_end, checkpoint_after_5, finished, rows, state, untimed


def names(folder: Path) -> list[tuple[int, int]]:
    """Attempt and updates of each, the newest first."""
    return [(saved.attempt, saved.num_updates) for saved in record.newest_first(folder)]


def test_the_newest_is_that_of_the_last_attempt_then_of_the_last_update(tmp_path: Path) -> None:
    for name in (
        "checkpoint-000000030-000001-aa.pt",  # written by who was taken over
        "checkpoint-000000005-000002-aa.pt",
        "checkpoint-000000010-000002-aa.pt",
        "checkpoint-000000099-aa.pt",  # written before attempts were in the name
        "checkpoint-best.pt",
    ):
        (tmp_path / name).touch()
    assert names(tmp_path) == [(2, 10), (2, 5), (1, 30), (0, 99)]


def test_an_older_attempt_deletes_none_of_a_newer_one(tmp_path: Path) -> None:
    record.save(tmp_path, 5, state(5), 1)
    [(_, _, path)] = record.newest_first(tmp_path)
    record.adopt(path, 2, always)
    assert names(tmp_path) == [(2, 5)]
    record.save(tmp_path, 30, state(30), 1)
    assert names(tmp_path) == [(2, 5), (1, 30)]
    record.save(tmp_path, 10, state(10), 2)
    assert names(tmp_path) == [(2, 10)]


def test_an_adopted_one_is_still_verified(tmp_path: Path) -> None:
    record.save(tmp_path, 5, state(5), 1)
    record.adopt(record.newest_first(tmp_path)[0].path, 2, always)
    [(_, _, path)] = record.newest_first(tmp_path)
    assert record.load(path)["num_updates"] == 5
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="truncated or altered"):
        record.load(path)


def test_who_was_taken_over_saves_and_adopts_nothing(tmp_path: Path) -> None:
    def refuse() -> None:
        raise LeaseLost

    record.save(tmp_path, 5, state(5), 1)
    [(_, _, path)] = record.newest_first(tmp_path)
    with pytest.raises(LeaseLost):
        record.save(tmp_path, 10, state(10), 1, refuse)
    with pytest.raises(LeaseLost):
        record.adopt(path, 2, refuse)
    assert [*tmp_path.iterdir()] == [path]


def test_files_of_existing_stores_keep_their_name_and_format(tmp_path: Path) -> None:
    record.save(tmp_path, 5, state(5), 3)
    [path] = tmp_path.iterdir()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.name == f"checkpoint-000000005-000003-{digest[:16]}.pt"
    assert torch.load(path) == {"format": 2, **state(5)}


def test_a_state_that_the_disk_has_no_space_for_is_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch hides the reason behind an error of its own."""

    def full(saved: object, file: Any) -> None:
        file.write(b"a part of it")
        try:
            raise OSError(errno.ENOSPC, "no space")
        except OSError:
            raise RuntimeError("unexpected pos") from None

    record.save(tmp_path, 5, state(5), 1)
    before = [*tmp_path.iterdir()]
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="no space"):
        record.save(tmp_path, 10, state(10), 1)
    assert [*tmp_path.iterdir()] == before


WAIT = 30.0
CODE = """
import os, signal, sys, torch
from pathlib import Path
from tests.support.trials import state
from pipegap.trainer.folder.record import TrialFolder

with TrialFolder(Path(sys.argv[1]), "a").claimed({}, {}) as folder:
    folder.resume(0, None)
    folder.append({"update": 0, "wall_seconds": 0.0})
    folder.save(1, state(1))
    folder.append({"update": 1, "wall_seconds": 1.0})

    def die(content, file):
        file.write(b"a half of it")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    torch.save = die
    folder.save(2, state(2), wait=False)
    folder._saved()
"""


@contextmanager
def training(path: Path, num_done: int) -> Iterator[TrialFolder]:
    """A trial that has done so many updates, and saves the state after the first one."""
    with TrialFolder(path, "a").claimed({}, {}) as folder:
        folder.resume(0, None)
        for update in range(num_done):
            folder.append({"update": update, "wall_seconds": float(update)})
            if update == 0:
                folder.save(1, state(1))
        yield folder


def held_up(monkeypatch: pytest.MonkeyPatch) -> tuple[Event, Event]:
    """Writing has begun; it may go on."""
    begun, allowed, save = Event(), Event(), torch.save

    def waits(content: Any, file: Any) -> None:
        begun.set()
        assert allowed.wait(WAIT)
        save(content, file)

    monkeypatch.setattr(torch, "save", waits)
    return begun, allowed


def saved(path: Path) -> list[int]:
    return [file.num_updates for file in record.newest_first(path)]


def test_the_trial_goes_on_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it does to its state, and rows after it, are not in the checkpoint."""
    with training(tmp_path, 2) as folder:
        begun, allowed = held_up(monkeypatch)
        now = {**state(2), "executor": {"w": torch.zeros(3)}}
        folder.save(2, now, wait=False)
        assert begun.wait(WAIT)
        now["executor"]["w"] += 1
        folder.append({"update": 2, "wall_seconds": 2.0})
        assert saved(tmp_path) == [1]
        allowed.set()
    [newest] = record.newest_first(tmp_path)
    assert newest.num_updates == 2
    assert torch.equal(record.load(newest.path)["executor"]["w"], torch.zeros(3))
    assert TrialFolder(tmp_path, "a").newest_checkpoint() == newest.path


def test_the_host_holds_one_copy_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next state is copied when the one before it is written."""
    with training(tmp_path, 3) as folder:
        begun, allowed = held_up(monkeypatch)
        folder.save(2, state(2), wait=False)
        assert begun.wait(WAIT)
        was_written: list[bool] = []

        def noted(whole: Any) -> Any:
            was_written.append(allowed.is_set())
            return copied(whole)

        monkeypatch.setattr("pipegap.trainer.folder.record.copied", noted)
        Timer(0.1, allowed.set).start()
        folder.save(3, state(3), wait=False)
    assert was_written == [True]


def test_a_state_that_nobody_changes_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gang's, of which the recording rank got a copy."""
    monkeypatch.delattr("pipegap.trainer.folder.record.copied")
    with training(tmp_path, 2) as folder:
        folder.save(2, state(2), wait=False, may_change=False)
    assert saved(tmp_path) == [2]


def test_a_kill_while_it_is_written_keeps_the_former_one(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert saved(tmp_path) == [1]
    newest = TrialFolder(tmp_path, "a").newest_checkpoint()
    assert newest is not None
    assert record.load_own(newest, "a")["num_updates"] == 1


def test_a_process_that_was_taken_over_publishes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LeaseLost), training(tmp_path, 2) as folder:  # noqa: PT012
        begun, allowed = held_up(monkeypatch)
        folder.save(2, state(2), wait=False)
        assert begun.wait(WAIT)
        lease.attempt_path(tmp_path, 2).write_text("{}")
        allowed.set()
    assert saved(tmp_path) == [1]


@pytest.mark.parametrize(
    "then",
    [
        lambda folder: folder.save(3, state(3), wait=False),
        lambda folder: folder.save(3, state(3)),
        lambda folder: folder.finish(finished()),
        lambda folder: None,
    ],
    ids=["another", "one to wait for", "the result", "the end of the trial"],
)
def test_what_goes_wrong_is_raised_by_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: Callable[[TrialFolder], object]
) -> None:
    def full(content: Any, file: Any) -> None:
        raise OSError(28, "No space left on device")

    with (  # noqa: PT012
        pytest.raises(OSError, match="No space left"),
        training(tmp_path, 2) as folder,
    ):
        monkeypatch.setattr(torch, "save", full)
        folder.save(2, state(2), wait=False)
        then(folder)
    assert saved(tmp_path) == [1]
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".partial")]


def test_tensors_that_share_memory_share_it_in_a_copy() -> None:
    """So that a checkpoint is no larger than one that was written at once."""
    whole = torch.arange(12.0)
    before = {"a": whole, "b": [whole[2:6], (whole.view(3, 4).T, 7)], "c": None}
    after = copied(before)
    whole += 100
    assert torch.equal(after["a"], torch.arange(12.0))
    assert torch.equal(after["b"][0], torch.arange(2.0, 6.0))
    assert torch.equal(after["b"][1][0], torch.arange(12.0).view(3, 4).T)
    assert (after["b"][1][1], after["c"]) == (7, None)
    after["a"][2] = -1
    assert after["b"][0][0] == -1


# A trial goes on with other stages and in another executor as if it had been so all the time.

LIKE = (
    *("model.num_layers=4", "pipeline=pipedream_2bw", "correction=error_feedback"),
    *("pipeline.num_microbatches=4", "save_final=true"),
)
LAYOUTS = {
    "two ranks": ("runner=pipelined", "pipeline.num_stages=2"),
    "four ranks": ("runner=pipelined", "pipeline.num_stages=4"),
    "three emulated": ("pipeline.num_stages=3",),
}


def config(folder: Path, layout: str, name: str, *words: str) -> dict[str, Any]:
    out = f"out={folder / name}"
    return small_sweep.config(folder, *LIKE, *LAYOUTS[layout], out, *words)


def stopped(folder: Path, layout: str, *words: str) -> Path:
    return checkpoint_after_5(config(folder, layout, "stopped", *words))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("two ranks", "four ranks", ["optimizer=adamw"]),
        pytest.param("four ranks", "two ranks", ["optimizer=muon"], marks=pytest.mark.slow),
        ("three emulated", "two ranks", ["optimizer=muon", "dtype=bfloat16"]),
        ("two ranks", "three emulated", ["optimizer=sgd"]),
    ],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_other_stages_go_on_exactly(
    tmp_path: Path, before: str, after: str, words: list[str]
) -> None:
    path = stopped(tmp_path, before, *words)
    expected = run_trial(config(tmp_path, after, "whole", *words))
    result = run_trial(config(tmp_path, after, "resumed", *words, f"resume_from={path}"))
    assert result.pop("trial_id") != expected.pop("trial_id")
    assert untimed(result) == untimed(expected)
    assert len(rows(tmp_path / "resumed")) == 7
    assert_same_end(tmp_path, "resumed", "whole")


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The working folder of a trial that did not go on, and its checkpoint."""
    folder = tmp_path_factory.mktemp("unfinished")
    path = stopped(folder, "three emulated")
    (folder / "altered").mkdir()
    (folder / "altered" / path.name).write_bytes(path.read_bytes()[:-100])
    return folder, path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["optimizer.lr=0.02"], "is of a trial with optimizer="),
        (["pipeline=sync", "correction=error_feedback"], "has 2 versions, 1 are needed"),
        (["resume_from=nowhere.pt"], "must be a checkpoint"),
        (["resume_from={0}/altered/{1.name}"], r"is truncated or altered: choose another$"),
    ],
)
def test_what_would_not_be_the_same_trial_is_refused(
    unfinished: tuple[Path, Path], words: list[str], says: str
) -> None:
    folder, path = unfinished
    given = (f"resume_from={path}", *(word.format(*unfinished) for word in words))
    with pytest.raises(BadInput, match=says):
        run_trial(config(folder, "three emulated", "other", *given))
    assert not (folder / "other").exists()


def test_the_id_does_not_depend_on_the_attempt_that_saved(tmp_path: Path) -> None:
    """A checkpoint gets another name when its trial is resumed; ids made before stay."""
    ids = set()
    for name in ("000000005-0123456789abcdef", "000000005-000002-0123456789abcdef"):
        path = f"resume_from=elsewhere/checkpoint-{name}.pt"
        ids.add(plan_trial(config(tmp_path, "three emulated", "resumed", path)).trial_id)
    assert len(ids) == 1


def test_it_resumes_from_a_checkpoint_and_an_attempt_of_older_code(tmp_path: Path) -> None:
    """Which had no attempt in the name, and did not note what made them."""
    out = tmp_path / "stopped"
    path = stopped(tmp_path, "three emulated")
    updates, _, digest = path.stem.removeprefix("checkpoint-").split("-")
    path.rename(out / f"checkpoint-{updates}-{digest}.pt")
    noted = out / "attempt-000001.json"
    attempt = json.loads(noted.read_text())
    older = {key: value for key, value in attempt.items() if key not in ("git", "versions")}
    noted.write_text(json.dumps(older))
    result = run_trial(config(tmp_path, "three emulated", "stopped"))
    expected = run_trial(config(tmp_path, "three emulated", "whole"))
    assert untimed(result) == untimed(expected)
    assert rows(out) == rows(tmp_path / "whole")
    first, second = result["attempts"]
    assert (first["from_update"], first["git"]) == (0, None)
    assert (second["from_update"], second["git"]) == (5, result["git"])


def test_a_checkpoint_says_what_made_it(unfinished: tuple[Path, Path]) -> None:
    assert record.load(unfinished[1])["made_by"] == made_by("cpu")
    assert made_by("cpu").keys() == {"git", "versions", "device_name", "processor"}
