"""What `pipegap trial` says of a trial, and that its package has one name."""

from pathlib import Path

import pytest

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


@pytest.mark.parametrize("package", ["trainer", "sweeps", "analysis"])
def test_a_checkout_has_no_second_name_for_a_package(package: str) -> None:
    for words in (["-c", f"import {package}"], ["-m", package]):
        done = python(*words, cwd=CODE_ROOT)
        assert done.returncode == 1
        assert f"its packages have one name: import pipegap.{package}" in done.stderr
