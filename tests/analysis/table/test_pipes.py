"""Nobody waits for a pipe that stands in place of a file."""

import os
import warnings
from pathlib import Path

import pandas as pd
import pytest

from analysis import load
from analysis.table.index import index_path
from analysis.table.metrics import training_losses
from tests.support.synthetic_store import LOSSES, write_arms


@pytest.mark.parametrize("file", ["config.json", "result.json", "metrics.jsonl"])
def test_nobody_waits_for_a_pipe(file: str, tmp_path: Path) -> None:
    write_arms(tmp_path, LOSSES)
    path = tmp_path / "trials" / "0000" / file
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(tmp_path)
    assert [str(path) in str(warning.message) for warning in caught] == [True] * (
        file != "metrics.jsonl"
    )
    assert len(training_losses(str(path.parent))) == 400 * (file != "metrics.jsonl")


def test_nobody_waits_for_a_pipe_in_place_of_the_index(tmp_path: Path) -> None:
    write_arms(tmp_path, LOSSES)
    whole = load(tmp_path)
    path = index_path(tmp_path)
    path.unlink()
    os.mkfifo(path)
    pd.testing.assert_frame_equal(load(tmp_path), whole)
