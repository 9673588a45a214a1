"""A table is the same with and without an index, whatever happened to the store or the index."""

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest
from pyarrow import parquet

from pipegap.analysis import load
from pipegap.analysis.table import index as trials_index
from tests.support.synthetic_store import config, result, write


def make(store: Path) -> None:
    """Completed, diverged, failed and unfinished trials, and a folder that is none."""
    for arm, loss in (("sync", 1.5), ("delay", None), ("delay_ef", 1.75)):
        settings = config(arm)
        write(store, settings, result(settings, loss))
    failed = {"status": "failed", "error": "Traceback", "data_hash": None, "git": None}
    write(store, config("delay", seed=1), failed)
    write(store, config("sync", seed=1), None)
    (store / "trials" / "empty").mkdir()


def index(store: Path) -> Path:
    return store / ".index" / "trials.parquet"


def without(store: Path) -> pd.DataFrame:
    """The table of the same files by another name, under which they have no index."""
    plain = store / "plain"
    if not plain.exists():
        plain.symlink_to(store / "trials")
    table = load(plain)
    assert index(store).parent.name not in os.listdir(store / "trials")
    places = table["folder"].str.replace(str(plain), str(store / "trials"), regex=False)
    return table.assign(folder=places)


def same(store: Path) -> None:
    expected = without(store)
    for _ in range(2):
        pd.testing.assert_frame_equal(load(store), expected)


def test_the_same_table_to_the_dtype_and_no_file_is_opened_again(tmp_path: Path) -> None:
    make(tmp_path)
    assert not index(tmp_path).exists()
    same(tmp_path)
    assert load(tmp_path)["status"].value_counts().to_dict() == {
        "completed": 2,
        "diverged": 1,
        "failed": 1,
        "unfinished": 1,
    }
    path = tmp_path / "trials" / "0000" / "result.json"
    seen, text = path.stat(), path.read_text()
    path.write_text(text.replace("1.5", "9.5"))
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert load(tmp_path)["final_val_loss"].iloc[0] == 1.5  # as if nothing had changed
    os.utime(path)
    assert load(tmp_path)["final_val_loss"].iloc[0] == 9.5


def complete(store: Path, arm: str, trial_id: str) -> None:
    content = {"trial_id": trial_id, **result(config(arm, seed=1), 1.25)}
    (store / "trials" / trial_id / "result.json").write_text(json.dumps(content))


def finish(store: Path) -> None:
    complete(store, "sync", "0004")


def repair(store: Path) -> None:
    complete(store, "delay", "0003")


def add(store: Path) -> None:
    settings = config("delay", optimizer="muon")
    settings["optimizer"]["lr"] = 1  # an integer beside floats
    settings["pipeline"]["delay"] = 3
    write(store, settings, result(settings, 1.125))


def remove(store: Path) -> None:
    shutil.rmtree(store / "trials" / "0002")


def retract(store: Path) -> None:
    (store / "trials" / "0000" / "result.json").unlink()


@pytest.mark.parametrize("change", [finish, repair, add, remove, retract])
def test_what_changes_in_the_store_changes_in_the_table(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path)
    before = load(tmp_path)
    change(tmp_path)
    same(tmp_path)
    assert not load(tmp_path).equals(before)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def by_other_code(path: Path) -> None:
    table = parquet.read_table(path)
    wrong = ['{"trial_id": "wrong"}'] * len(table)
    changed = table.drop_columns(["row"]).append_column("row", [wrong])
    parquet.write_table(changed.replace_schema_metadata({b"made_by": b"others"}), path)


DAMAGES = [cut, by_other_code, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_index_is_made_again(damage: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path)
    load(tmp_path)
    whole = parquet.read_table(index(tmp_path))
    damage(index(tmp_path))
    same(tmp_path)
    assert parquet.read_table(index(tmp_path)).equals(whole)


def test_rows_are_made_again_where_other_choices_give_trials_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = trials_index._made_by.__wrapped__()
    assert trials_index._made_by.__wrapped__() == before
    (tmp_path / "mine.yaml").write_text("_target_: trainer.models.llama.Llama")
    monkeypatch.setattr(trials_index, "yamls", lambda group: [tmp_path / "mine.yaml"])
    assert trials_index._made_by.__wrapped__() != before


def test_a_store_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / ".index").write_text("in the way")
    same(tmp_path)


def test_readers_and_writers_at_once(tmp_path: Path) -> None:
    make(tmp_path)
    expected = without(tmp_path)

    def work(turn: int) -> pd.DataFrame:
        if turn % 3 == 0:
            index(tmp_path).unlink(missing_ok=True)
        return load(tmp_path)

    with ThreadPoolExecutor(6) as pool:
        for table in pool.map(work, range(36)):
            pd.testing.assert_frame_equal(table, expected)
    assert [path.name for path in (tmp_path / ".index").iterdir()] in (["trials.parquet"], [])


def test_some_trials_are_loaded_as_if_there_were_no_others(tmp_path: Path) -> None:
    make(tmp_path / "all")
    ids = ["0001", "0003", "empty", "nowhere"]
    for _ in range(2):
        some = load(tmp_path / "all", ids)
        load(tmp_path / "all")
    shutil.copytree(tmp_path / "all" / "trials", tmp_path / "few" / "trials")
    for other in ("0000", "0002", "0004"):
        shutil.rmtree(tmp_path / "few" / "trials" / other)
    aside = ["folder", "finished_at"]
    pd.testing.assert_frame_equal(
        some.drop(columns=aside), load(tmp_path / "few").drop(columns=aside)
    )
    assert len(load(tmp_path / "all")) == 5
