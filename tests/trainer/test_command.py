"""What `pipegap trial` says of a trial, and what `import trainer` gives."""

from pathlib import Path

import pytest

from pipegap import trainer
from pipegap.trainer.__main__ import main
from pipegap.trainer.base.places import CODE_ROOT
from tests.support import small
from tests.support.processes import python
from tests.support.refusals import Refused


def test_a_finished_trial_does_not_look_as_if_it_had_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = small.overrides(tmp_path, "num_updates=2")
    assert main(words) == 0
    ran = capsys.readouterr().out
    assert ran.startswith("completed trial ")
    assert main(words) == 0
    assert capsys.readouterr().out == f"done before, not run: {ran}"


def test_a_folder_that_cannot_be_made_is_refused_in_one_line(
    tmp_path: Path, refused: Refused
) -> None:
    words = small.overrides(tmp_path, "out=/proc/trial")
    assert refused(lambda: main(words)).startswith("pipegap trial: out=/proc/trial: ")


def test_every_public_name_is_there() -> None:
    assert [name for name in trainer.__all__ if not callable(getattr(trainer, name))] == []
    with pytest.raises(AttributeError, match="module 'trainer' has no attribute 'nothing'"):
        _ = trainer.nothing


@pytest.mark.parametrize("command", ["sweeps", "analysis"])
def test_another_package_of_that_name_is_told_in_one_line(tmp_path: Path, command: str) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").touch()
    path = {"PYTHONPATH": f"{tmp_path}:{CODE_ROOT}"}
    # -S: without what this checkout has installed
    done = python("-S", "-m", command, env=path, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"python -m {command}: another package is named trainer")
    assert done.stderr.count("\n") == 1
