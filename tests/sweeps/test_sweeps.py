"""A sweep is planned, or refused before it starts."""

from pathlib import Path

import pytest

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.request.files import known


def test_a_store_that_cannot_be_written_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep=main", "results=/proc/store"]) == 2
    assert "results=/proc/store: must be a folder that can be written" in capsys.readouterr().err


def test_everything_that_is_missing_is_named_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody fetches a GPU to learn that there is no data."""
    words = [f"results={tmp_path}", "sweep=main", "device=cuda", f"data.path={tmp_path / 'none'}"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "device=cuda: no such GPU" in error
    assert f"also data.path={tmp_path / 'none'}: holds no manifest.json" in error


@pytest.mark.parametrize(
    "scale",
    [
        pytest.param(name, marks=() if name == "few_updates" else pytest.mark.slow)
        for name in known("scale")
    ],
)
def test_every_sweep_can_be_planned_at_every_scale_anywhere(
    scale: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All at once: what they share is composed once. An arm has the name that a report gives it."""
    words = ["sweep=all", f"scale={scale}", f"results={tmp_path / 'store'}"]
    assert main([*words, "dry_run=true"]) == 0
    plan = capsys.readouterr().out
    assert ", 0 done" in plan
    rows = [line.split()[0] for line in plan.splitlines()]
    labels = [f"{name}-{scale}" for name in known("sweep")]
    assert rows[: len(labels) + 3] == ["trials", "sweep", *labels, "together"]
    assert not list(tmp_path.iterdir())
