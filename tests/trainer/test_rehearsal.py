"""The first updates of a trial, straight through and with a stop: equal, and seen where not."""

from pathlib import Path

import pytest

from pipegap.trainer import rehearsal
from pipegap.trainer.base.build import build
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.folder.record import TrialFolder
from pipegap.trainer.folder.result import Row
from tests.support import small

EF = ("pipeline=pipedream_2bw", "correction=error_feedback", "dtype=bfloat16")


def test_a_stop_and_a_resume_change_no_bit(tmp_path: Path) -> None:
    config = small.config(tmp_path, *EF)
    rehearsal.begin(config, tmp_path / "out")
    found = rehearsal.resume(config, tmp_path / "out")
    assert (found.status, found.stopped_after, found.difference) == ("completed", 3, None)
    rows = rehearsal._rows(tmp_path / "out" / rehearsal.STOPPED)
    assert ["val_loss" in row for row in rows] == [False, False, True, False, False, True]
    tokens = config["batch_size"] * config["seq_len"]
    straight = rehearsal._rows(tmp_path / "out" / rehearsal.STRAIGHT)
    seconds = sum(tokens / row["tokens_per_second"] for row in straight[3:])  # evaluated before
    assert found.tokens_per_second == pytest.approx(3 * tokens / seconds)


@pytest.mark.parametrize(("num_windows", "expected"), [(7, 4 + 3), (8, 4), (3, 3)])
def test_it_evaluates_a_whole_batch_and_the_last_one(
    tmp_path: Path, num_windows: int, expected: int
) -> None:
    rows = small.config(tmp_path)["data"]
    whole = build(rows).open().validation
    seq_len = (len(whole) - 1) // num_windows
    found = rehearsal.Excerpt(source=rows, path=None, rows=4, seq_len=seq_len).open()
    assert len(found.validation) == expected * seq_len + 1
    assert (found.validation.read(0, 9) == whole.read(0, 9)).all()


def test_one_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread, as on a GPU, and not again when the trial stops right after it."""
    waited, save = [], TrialFolder.save

    def saved(folder: TrialFolder, number: int, state: Row, wait: bool, **options: bool) -> None:
        waited.append((number, wait))
        save(folder, number, state, wait=False, **options)

    monkeypatch.setattr(TrialFolder, "save", saved)
    config = small.config(tmp_path, *EF)
    rehearsal.begin(config, tmp_path / "out")
    assert rehearsal.resume(config, tmp_path / "out").stopped_after == 3
    assert waited == [(3, True)], "a CPU waits"


def test_a_rank_of_a_true_pipeline_too(tmp_path: Path) -> None:
    """Ranks hear that they shall stop when they hear it; they may be at their end before."""
    config = small.config(tmp_path, *EF, "runner=pipelined", "pipeline.num_stages=2")
    rehearsal.begin(config, tmp_path / "out")
    found = rehearsal.resume(config, tmp_path / "out")
    assert found.difference is None
    assert found.stopped_after is None or 3 <= found.stopped_after < rehearsal.UPDATES


@pytest.mark.parametrize("deterministic", ["true", "false"])
def test_what_a_checkpoint_does_not_hold_is_seen(
    tmp_path: Path, deterministic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume that forgets Error Feedback's last update makes another gradient at update 3.
    Where a trial need not repeat its numbers, nothing is compared."""
    config = small.config(tmp_path, *EF, f"deterministic={deterministic}")
    rehearsal.begin(config, tmp_path / "out")
    monkeypatch.setattr(ErrorFeedback, "restore", lambda self, state: None)
    difference = rehearsal.resume(config, tmp_path / "out").difference
    assert ("of update" in str(difference)) == (deterministic == "true")


def test_what_cannot_run_says_so(tmp_path: Path) -> None:
    config = small.config(tmp_path)
    with pytest.raises(BadInput, match="device=cuda"):
        rehearsal.begin({**config, "device": "cuda"}, tmp_path / "out")
