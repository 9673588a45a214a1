"""One damaged trial or record is named in a line and left out; the others stay."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipegap.analysis import gaps, load
from pipegap.analysis.report.report import report
from pipegap.analysis.table.metrics import training_losses
from pipegap.trainer.folder.lease import attempt_path
from pipegap.trainer.store.records import records
from tests.support.reports import FEW, with_figures
from tests.support.synthetic_store import LOSSES, config, ids, record, result, write, write_arms

pytestmark = pytest.mark.usefixtures("without_figures")

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


@pytest.mark.parametrize("other", ["result.json", "metrics.jsonl", "trial_id"])
def test_a_trial_whose_config_is_missing_is_named(other: str, tmp_path: Path) -> None:
    whole = others(tmp_path)
    bad = tmp_path / "trials" / "bad"
    bad.mkdir()
    (bad / other).write_text("{}")
    with pytest.warns(UserWarning, match=f"damaged: {bad}/config.json cannot be read"):
        table = load(tmp_path)
    pd.testing.assert_frame_equal(table, whole)


def test_a_folder_that_a_process_has_just_claimed_is_no_trial_yet(tmp_path: Path) -> None:
    whole = others(tmp_path)
    (tmp_path / "trials" / "claimed").mkdir()
    attempt_path(tmp_path / "trials" / "claimed", 1).touch()
    with warnings.catch_warnings(action="error"):
        pd.testing.assert_frame_equal(load(tmp_path), whole)


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


def test_a_config_takes_no_column_of_the_result(tmp_path: Path) -> None:
    settings = config() | {"status": "x", "delays": {"a": 1}, "git": 3}
    write(tmp_path, settings, result(settings, 1.5) | {"optimizer": [1], "arm": 2})
    row = load(tmp_path).iloc[0]
    assert (row["status"], row["optimizer"], row["git"]) == ("completed", "adamw", "abc")


def test_a_value_that_is_a_list_can_be_grouped(tmp_path: Path) -> None:
    for seed, shape in enumerate(([1, 2], [3])):
        settings = config(seed=seed)
        settings["model"]["shape"] = shape
        write(tmp_path, settings, result(settings, 1.5))
    assert load(tmp_path)["model.shape"].tolist() == ["[1, 2]", "[3]"]
    gaps(load(tmp_path))


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


@pytest.mark.parametrize("changes", [{"scale": "../elsewhere"}, {"format": 1}], ids=str)
def test_a_damaged_record_is_left_out(changes: dict[str, Any], tmp_path: Path) -> None:
    write_arms(tmp_path, LOSSES)
    for name in ("main", "other"):
        record(tmp_path, name, "tiny", ids(tmp_path))
    path = tmp_path / "sweeps" / "other-tiny.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.warns(UserWarning, match=f"damaged: {path} is "):
        assert [record.sweep for record in records(tmp_path)] == ["main"]


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
