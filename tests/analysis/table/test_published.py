"""A published CSV that is no table of trials is refused in a line that names line and column."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from pipegap.analysis import load
from pipegap.analysis.__main__ import main
from pipegap.trainer.base.errors import BadInput
from tests.support.synthetic_store import LOSSES, write_arms

Table = list[list[str]]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """The head and the lines of a CSV as a report writes it."""
    store = tmp_path_factory.mktemp("store")
    write_arms(store, LOSSES)
    load(store).to_csv(store / "trials.csv", index=False)
    with (store / "trials.csv").open(newline="") as file:
        return [*csv.reader(file)]


def with_value(column: str, value: str) -> Callable[[Table], Table]:
    def change(table: Table) -> Table:
        place = table[0].index(column)
        return [table[0], [*table[1][:place], value, *table[1][place + 1 :]], *table[2:]]

    return change


DAMAGES: dict[str, tuple[Callable[[Table], Table], str]] = {
    "fewer columns": (lambda table: [table[0], table[1][:5]], "line 2 has 5 of"),
    "a column twice": (
        lambda table: [[*table[0], "seed"], *([*line, "1"] for line in table[1:])],
        "it has a column twice",
    ),
    "a trial twice": (lambda table: [*table, table[1]], "line 11 has the trial of another line"),
    "a loss that is a text": (with_value("final_val_loss", "abc"), "line 2 has final_val_loss=abc"),
    "a loss too large": (with_value("final_val_loss", "1e999"), "line 2 has final_val_loss=1e999"),
    "a status that is none": (with_value("status", "done"), "line 2 has status=done"),
}


def written(table: Table, folder: Path) -> Path:
    with (folder / "trials.csv").open("w", newline="") as file:
        csv.writer(file).writerows(table)
    return folder / "trials.csv"


@pytest.mark.parametrize("name", DAMAGES)
def test_a_malformed_table_is_refused(name: str, published: Table, tmp_path: Path) -> None:
    damage, says = DAMAGES[name]
    path = written(damage(published), tmp_path)
    with pytest.raises(BadInput, match=r"must be a trials\.csv of a report") as refused:
        load(path)
    assert says in str(refused.value)
    assert len(str(refused.value)) < 1_000


def test_another_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trials.csv").touch()
    assert main([f"results={tmp_path / 'trials.csv'}", f"out={tmp_path / 'out'}"]) == 2
    errors = capsys.readouterr().err
    assert (errors.count("\n"), "it lacks trial_id" in errors) == (1, True)
