"""A table is the same with and without an index, whatever happened to the store or the index."""

import json
import os
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyarrow import parquet

from pipegap.analysis import gaps, load
from pipegap.analysis.__main__ import main
from pipegap.analysis.report.report import report
from pipegap.analysis.table import load as trials_index
from pipegap.analysis.table.metrics import training_losses
from pipegap.analysis.table.points import remembered
from pipegap.analysis.table.selection import several, stored
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.folder.lease import attempt_path
from pipegap.trainer.store.records import records
from tests.support.pages import FEW, with_figures
from tests.support.synthetic_store import (
    LOSSES,
    config,
    ids,
    record,
    result,
    write,
    write_arms,
    write_in,
)


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


# The same tables are worked on once; other ones, equal or not, by themselves.


def test_the_same_tables_are_worked_on_once_while_they_live() -> None:
    seen = []

    @remembered
    def both(one: pd.DataFrame, two: pd.DataFrame) -> int:
        seen.append(len(one) + 10 * len(two))
        return seen[-1]

    first, second = pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [1, 2]})
    assert [both(first, second), both(second, first), both(first, second)] == [21, 12, 21]
    assert seen == [21, 12]
    assert both(first.copy(), second) == 21
    assert seen == [21, 12, 21]
    # A later table may lie where one lay that is gone.
    for length in range(20):
        assert both(pd.DataFrame({"a": range(length)}), second) == 20 + length


# One damaged trial or record is named in a line and left out; the others stay.

CONFIGS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda config: [config],
    "no pipeline": lambda config: {k: v for k, v in config.items() if k != "pipeline"},
    "a batch that is a list": lambda config: config | {"batch_size": [16]},
}
RESULTS: dict[str, dict[str, Any] | str] = {
    "torn": '{"status": "comp',
    "a status that is none": {"status": "done"},
    "a completed trial without a loss": {"final_val_loss": None},
}


def others(store: Path) -> pd.DataFrame:
    """A store of nine trials; returns their rows."""
    write_arms(store, LOSSES)
    return load(store)


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("name", CONFIGS)
def test_a_trial_with_a_damaged_config_is_left_out(name: str, tmp_path: Path) -> None:
    whole = others(tmp_path)
    bad = write(tmp_path, CONFIGS[name](config()), result(config(), 1.5))
    for _ in range(2):  # an index is not allowed to hide it
        with pytest.warns(UserWarning, match=f"damaged: {bad}/config.json is not") as caught:
            table = load(tmp_path)
        pd.testing.assert_frame_equal(table, whole)
        assert "\n" not in str(caught[0].message)
        assert caught[0].filename == __file__, "it names the line of the caller"


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("other", ["result.json", "metrics.jsonl", "trial_id"])
def test_a_trial_whose_config_is_missing_is_named(other: str, tmp_path: Path) -> None:
    whole = others(tmp_path)
    bad = tmp_path / "trials" / "bad"
    bad.mkdir()
    (bad / other).write_text("{}")
    with pytest.warns(UserWarning, match=f"damaged: {bad}/config.json cannot be read"):
        table = load(tmp_path)
    pd.testing.assert_frame_equal(table, whole)


@pytest.mark.usefixtures("without_figures")
def test_a_folder_that_a_process_has_just_claimed_is_no_trial_yet(tmp_path: Path) -> None:
    whole = others(tmp_path)
    (tmp_path / "trials" / "claimed").mkdir()
    attempt_path(tmp_path / "trials" / "claimed", 1).touch()
    with warnings.catch_warnings(action="error"):
        pd.testing.assert_frame_equal(load(tmp_path), whole)


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("file", ["config.json", "result.json"])
def test_a_file_that_cannot_be_read_stops_no_other(file: str, tmp_path: Path) -> None:
    whole = others(tmp_path)
    bad = write(tmp_path, config(seed=3), result(config(), 1.5)) / file
    bad.unlink()
    bad.mkdir()
    record(tmp_path, "main", "tiny", ids(tmp_path))
    (tmp_path / "sweeps" / "other.json").symlink_to("nowhere")
    with pytest.warns(UserWarning, match=f"damaged: {bad} is a folder"):
        table = load(tmp_path)
    assert table["status"].tolist()[:9] == whole["status"].tolist()
    with pytest.warns(UserWarning, match="other.json cannot be read"):
        assert len(records(tmp_path)) == 1


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("name", RESULTS)
def test_a_damaged_result_counts_as_none(name: str, tmp_path: Path) -> None:
    whole, damage = others(tmp_path), RESULTS[name]
    bad = write(tmp_path, config(seed=3), result(config(), 1.5))
    content = json.loads((bad / "result.json").read_text())
    text = damage if isinstance(damage, str) else json.dumps(content | damage)
    (bad / "result.json").write_text(text)
    for _ in range(2):  # an index is not allowed to hide it
        with pytest.warns(UserWarning, match=f"damaged: {bad}/result.json is not"):
            table = load(tmp_path)
        assert table["status"].tolist()[-1] == "unfinished"
        assert table["finished_at"].isna().tolist() == [False] * len(whole) + [True]
        pd.testing.assert_frame_equal(gaps(table)[["arm", "gap"]], gaps(whole)[["arm", "gap"]])
    (bad / "config.json").write_text("{")
    with pytest.warns(UserWarning, match=r"config\.json"):
        pd.testing.assert_frame_equal(load(tmp_path), whole)


@pytest.mark.usefixtures("without_figures")
def test_a_config_takes_no_column_of_the_result(tmp_path: Path) -> None:
    settings = config() | {"status": "x", "delays": {"a": 1}, "git": 3}
    write(tmp_path, settings, result(settings, 1.5) | {"optimizer": [1], "arm": 2})
    row = load(tmp_path).iloc[0]
    assert (row["status"], row["optimizer"], row["git"]) == ("completed", "adamw", "abc")


@pytest.mark.usefixtures("without_figures")
def test_a_value_that_is_a_list_can_be_grouped(tmp_path: Path) -> None:
    for seed, shape in enumerate(([1, 2], [3])):
        settings = config(seed=seed)
        settings["model"]["shape"] = shape
        write(tmp_path, settings, result(settings, 1.5))
    assert load(tmp_path)["model.shape"].tolist() == ["[1, 2]", "[3]"]
    gaps(load(tmp_path))


@pytest.mark.usefixtures("without_figures")
def test_damaged_rows_are_left_out_of_a_curve_and_named_in_the_report(tmp_path: Path) -> None:
    others(tmp_path)
    path = tmp_path / "trials" / "0000" / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[10] = lines[10][:5] + b"\n"
    lines[20] = b"\0" * 30 + b"\n"
    lines[30] = lines[30].replace(b"2.0", b'"x"')
    lines[40] = lines[41]
    path.write_bytes(b"".join(lines))
    with pytest.warns(UserWarning, match=f"{path} has 3 damaged lines") as caught:
        curve = training_losses(str(path.parent))
    assert len(caught) == 1
    assert curve["update"].tolist() == [u for u in range(400) if u not in (10, 20, 30, 40)]
    with with_figures(FEW):
        told = report(tmp_path, tmp_path / "out")
    assert f"warning: {path} has 2 damaged lines" in told


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("changes", [{"scale": "../elsewhere"}, {"format": 1}], ids=str)
def test_a_damaged_record_is_left_out(changes: dict[str, Any], tmp_path: Path) -> None:
    write_arms(tmp_path, LOSSES)
    for name in ("main", "other"):
        record(tmp_path, name, "tiny", ids(tmp_path))
    path = tmp_path / "sweeps" / "other-tiny.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.warns(UserWarning, match=f"damaged: {path} is "):
        assert [record.sweep for record in records(tmp_path)] == ["main"]


@pytest.mark.usefixtures("without_figures")
def test_folders_that_are_no_store_may_have_any_name_but_a_trial_counts_once(
    tmp_path: Path,
) -> None:
    whole = others(tmp_path)
    trials = tmp_path / "trials"
    (trials / "0000").rename(trials / "mine")
    shutil.copytree(trials / "mine", trials / "mine.bak")
    with pytest.warns(UserWarning, match="mine.bak is a copy of trial 0000") as caught:
        table = load(trials)
    assert len(caught) == 1
    assert sorted(table["trial_id"]) == [*whole["trial_id"]]


# Two stores in one report: trials of both, each once, and what differs is said.


def test_trials_of_two_stores_are_compared_and_what_differs_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = tmp_path / "a", tmp_path / "b"
    write_arms(one, {"sync": [1.5, 1.6]})
    shutil.copytree(one, other)
    first, second = ids(one)
    changed = other / "trials" / first / "result.json"
    changed.write_text(json.dumps({**json.loads(changed.read_text()), "final_val_loss": 1.75}))
    (one / "trials" / second / "result.json").unlink()  # unfinished there, finished in the other
    write_arms(other, {"delay": [1.9]})
    with pytest.warns(UserWarning, match="trial") as caught:
        table, _ = stored([one, other])
    assert sorted(str(warning.message) for warning in caught) == [
        f"2 trials of {one} and 3 trials of {other} are compared, 2 trials are in several and "
        f"count once; commands name {one}",
        f"trial {first} differs in {one} (shown) and {other}: final_val_loss 1.5 and 1.75",
    ]
    losses = table.set_index("trial_id")["final_val_loss"]
    assert (losses[first], losses[second], len(losses)) == (1.5, 1.6, 3)
    alone = load(other)
    assert {*table} == {*alone}
    assert (table[[*alone]].dtypes == alone.dtypes).all()
    assert main(["report", f"results=[{one},{other}]", f"out={tmp_path / 'out'}"]) == 0
    printed = capsys.readouterr().out
    assert f"warning: trial {first} differs in {one} (shown) and {other}: " in printed
    assert (tmp_path / "out" / "trials.csv").read_text().count("\n") == 4


def test_of_two_results_of_a_trial_that_on_its_partners_machine_counts(tmp_path: Path) -> None:
    """In the first store sync ran on an H100 and the delay failed; the second has both on A100."""
    settings = {arm: config(arm) for arm in ("sync", "delay")}
    for store, device, arms in (("a", "H100", ["sync"]), ("b", "A100", ["sync", "delay"])):
        for arm in arms:
            of_store = result(settings[arm], 1.5 + (arm == "delay"), device_name=device)
            write_in(tmp_path / store / "trials" / arm, settings[arm], of_store)
    with pytest.warns(UserWarning, match="trial") as caught:
        table, _ = stored([tmp_path / "a", tmp_path / "b"])
    assert {*table["device_name"]} == {"A100"}
    assert [*table["trial_id"]] == ["sync", "delay"]
    assert gaps(table)["n"].tolist() == [1]
    assert not any("mix" in str(warning.message) for warning in caught)
    changed = tmp_path / "b" / "trials" / "sync" / "result.json"
    changed.write_text(json.dumps({**json.loads(changed.read_text()), "final_val_loss": 1.25}))
    with pytest.warns(UserWarning, match="trial") as caught:
        stored([tmp_path / "a", tmp_path / "b"])
    differs = f"trial sync differs in {tmp_path / 'b'} (shown) and {tmp_path / 'a'}: "
    differs += "final_val_loss 1.25 and 1.5; device_name A100 and H100"
    assert differs in [str(warning.message) for warning in caught]


def test_a_folder_with_brackets_is_that_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert several("[a,b]") == ["a", "b"]
    Path("[a,b]").mkdir()
    assert several("[a,b]") == ["[a,b]"]
    for word in ("[a,a]", "[a,./a]", "[a,]"):
        with pytest.raises(BadInput, match="must name stores, each once"):
            several(word)
