"""A results folder, or the CSV that a report made of it, becomes one tidy table."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from pipegap.analysis import advise, best, gaps, load
from pipegap.analysis.report.report import report
from pipegap.analysis.table.load import NEEDED, OF_EVERY_TRIAL
from pipegap.analysis.table.metrics import validation_losses
from pipegap.analysis.table.schema import TRIAL
from pipegap.trainer.base.errors import BadInput
from tests.support.synthetic_store import config, put, result, write

ROOT = Path(__file__).parents[3]
EVERY = sorted((ROOT / "findings").glob("*/trials_*.csv"))


def test_a_row_has_the_schema_and_the_dotted_config(tmp_path: Path) -> None:
    settings = config("delay_ef", seed=4)
    folder = write(tmp_path, settings, result(settings, 1.5))
    table = load(tmp_path)
    assert list(table)[: len(TRIAL)] == list(TRIAL)
    assert {name: str(table[name].dtype) for name in TRIAL} == {k: v[0] for k, v in TRIAL.items()}
    row = table.iloc[0]
    names = ("adamw", "error_feedback", "tiny")
    assert (row["optimizer"], row["correction"], row["model"]) == names
    assert (row["arm"], row["seed"], row["final_val_loss"]) == ("delay_ef", 4, 1.5)
    assert (row["optimizer.lr"], row["versions.torch"]) == (0.004, "2.13.0")
    assert (row["folder"], row["delays"]) == (str(folder), [1])
    assert "optimizer._target_" not in table


def test_choices_are_called_by_their_names_and_arms_by_their_classes(tmp_path: Path) -> None:
    settings = config("delay_ef")
    chosen = {"model": "big", "data": "books", "optimizer": "best", "pipeline": "late"}
    settings["choices"] = chosen | {"correction": "ef", "lr_schedule": "slow"}
    write(tmp_path, settings, result(settings, 1.5))
    row = load(tmp_path).iloc[0]
    assert {group: row[group] for group in settings["choices"]} == settings["choices"]
    assert (row["arm"], row["base_arm"], row["family"]) == ("delay_ef", "delay", "delay_ef")
    assert not [name for name in row.index if name.startswith("choices")]


def test_the_name_of_most_trials_of_a_point_counts(tmp_path: Path) -> None:
    names = ["b", "a", "b", "c", "a"]
    for seed, name in enumerate(names):
        settings = config(seed=seed) | {"choices": {"model": name, "pipeline": name}}
        settings["optimizer"]["lr"] = 0.1 if seed > 2 else 0.2
        write(tmp_path, settings, result(settings, 1.5))
    table = load(tmp_path)
    assert table["model"].tolist() == ["b", "b", "b", "a", "a"]
    assert table["pipeline"].tolist() == names


def test_integers_stay_integers_beside_missing_values(tmp_path: Path) -> None:
    with_delay = config("delay")
    with_delay["pipeline"]["delay"] = 3
    for settings in (config("sync"), with_delay):
        write(tmp_path, settings, result(settings, 1.5))
    table = load(tmp_path)
    assert str(table["pipeline.delay"].dtype) == "Int64"
    assert table["pipeline.delay"].dropna().tolist() == [3]
    assert str(table["save_final"].dtype) == "boolean"


def test_the_same_rows_from_the_store_its_trials_and_a_single_folder(tmp_path: Path) -> None:
    folders = [write(tmp_path, c, result(c, 1.5)) for c in (config(), config("delay"))]
    whole = load(tmp_path)
    assert_frame_equal(load(str(tmp_path / "trials")), whole)
    assert load(folders[1])["trial_id"].tolist() == whole["trial_id"].tolist()[1:]


def test_unfinished_and_failed_trials_have_rows(tmp_path: Path) -> None:
    settings = config("delay")
    write(tmp_path, settings, None)
    failed = {"status": "failed", "error": "Traceback", "data_hash": None, "git": None}
    write(tmp_path, settings, failed)
    (tmp_path / "trials" / "claimed").mkdir()
    table = load(tmp_path)
    assert table["status"].tolist() == ["unfinished", "failed"]
    assert table["arm"].tolist() == ["delay", "delay"]
    assert table["final_val_loss"].isna().all()


def test_the_point_is_what_the_arms_of_a_comparison_share(tmp_path: Path) -> None:
    same, other_lr, other_data = config("delay", seed=3), config("delay"), config("delay")
    same |= {"out": "elsewhere", "checkpoint_every": 7, "save_final": True, "results": "r"}
    same["data"]["path"] = "/elsewhere/wiki"
    same["diagnostics"] = {"every": 10}
    same["pipeline"]["num_microbatches"] = 8
    other_lr["optimizer"]["lr"] = 0.002
    for settings in (config("sync"), same, other_lr):
        write(tmp_path, settings, result(settings, 1.5))
    write(tmp_path, other_data, result(other_data, 1.5, data_hash="e" * 64))
    points = load(tmp_path)["point"].tolist()
    assert points[0] == points[1]
    assert len(set(points)) == 3
    assert points[0].split("-")[0] == points[3].split("-")[0]


def test_a_pair_has_one_way_to_compile(tmp_path: Path) -> None:
    for compile in (False, True, "update"):
        for arm in ("sync", "delay"):
            settings = config(arm) | {"compile": compile}
            write(tmp_path, settings, result(settings, 1.5 + 0.1 * (arm == "delay")))
    sync = config("sync", seed=9) | {"compile": "update"}
    write(tmp_path, sync, result(sync, 1.5))
    other = config("delay", seed=9) | {"compile": False}
    write(tmp_path, other, result(other, 1.5))
    table = gaps(load(tmp_path))
    assert table["n"].tolist() == [1, 1, 1]
    assert table["missing_sync_seeds"].tolist().count("9") == 1


def test_validation_losses_are_read_up_to_the_last_whole_line(tmp_path: Path) -> None:
    rows = [{"update": 0}, {"update": 1, "val_loss": 2.5}, {"update": 2, "val_loss": None}]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"update": 3, "val_loss": 1.'
    (tmp_path / "metrics.jsonl").write_text(text)
    table = validation_losses(str(tmp_path))
    assert table["update"].tolist() == [1, 2]
    assert table["val_loss"].iloc[0] == 2.5
    assert table["val_loss"].isna().tolist() == [False, True]
    assert validation_losses(str(tmp_path / "none")).empty


def test_when_a_trial_finished_is_what_it_says_itself(tmp_path: Path) -> None:
    """A copy of a store has other times; only results of older code do not say it."""
    settings = config()
    folders = [write(tmp_path, settings, result(settings, 1.5)) for _ in range(3)]
    for folder, end in zip(
        folders, ({"finished_at": 1.5e9}, {}, {"finished_at": "x"}), strict=True
    ):
        path = folder / "result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **end}))
        os.utime(path, (1e9, 1e9))
    table = load(tmp_path).set_index("trial_id")
    seconds = [table.loc[folder.name, "finished_at"].timestamp() for folder in folders]
    assert seconds == [1.5e9, 1e9, 1e9]


def test_an_empty_store_gives_the_schema_and_a_missing_one_is_bad_input(tmp_path: Path) -> None:
    assert list(load(tmp_path)) == list(TRIAL)
    assert load(tmp_path).empty
    for missing in ("nowhere", "nothing.csv"):
        with pytest.raises(BadInput, match="no such folder"):
            load(tmp_path / missing)


@pytest.fixture(scope="module")
def published(few_figures: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A store with a diverged trial, a key that is null and lists; and the CSV of its report."""
    folder = tmp_path_factory.mktemp("published")
    store = folder / "store"
    for length, level in ((200, 2.0), (400, 1.8)):
        for arm, gap in (("sync", 0.0), ("delay", 0.123456789012345), ("delay_ef", 0.05)):
            losses = [level + gap, level + gap + 0.01, None if arm == "delay" else level + gap]
            put(store, arm, losses, num_updates=length, clip_norm=None, eps=1e-8, decay=1.0)
    report(store, folder / "out")
    return store, folder / "out" / "trials.csv"


def test_what_is_told_of_a_csv_is_what_is_told_of_its_store(published: tuple[Path, Path]) -> None:
    store, csv = published
    of_store, of_csv = load(store), load(csv)
    same = [name for name in of_store if name not in ("folder", "data.path", "results", "out")]
    assert_frame_equal(of_csv[same], of_store[same])
    assert_frame_equal(gaps(of_csv), gaps(of_store))
    assert_frame_equal(best(of_csv), best(of_store))
    question = {"optimizer": "adamw", "stages": 4, "microbatches": 8}
    assert str(advise(of_csv, **question)) == str(advise(of_store, **question))


@pytest.mark.parametrize("column", [name for name in (*TRIAL, *OF_EVERY_TRIAL) if name != "folder"])
def test_a_csv_of_older_code_lacks_a_column_that_no_comparison_needs(
    column: str, published: tuple[Path, Path], tmp_path: Path
) -> None:
    """Of any other the lack is refused by its name."""
    _, csv = published
    older = tmp_path / "older.csv"
    pd.read_csv(csv, dtype=str, keep_default_na=False).drop(columns=column).to_csv(
        older, index=False
    )
    if column in NEEDED:
        with pytest.raises(BadInput, match=f"lacks {column}"):
            load(older)
        return
    trials = load(older)
    assert trials[column].isna().all()
    assert_frame_equal(gaps(trials), gaps(load(csv)))
    assert_frame_equal(best(trials), best(load(csv)))


def test_some_of_its_trials(published: tuple[Path, Path]) -> None:
    _, csv = published
    assert load(csv, {"0001", "0004", "none"})["trial_id"].tolist() == ["0001", "0004"]


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_every_csv_of_the_documents_is_one(path: Path) -> None:
    trials = load(path)
    assert len(trials) == len(path.read_text().splitlines()) - 1
    assert (trials["final_val_loss"].isna() == (trials["status"] == "diverged")).all()


@pytest.mark.filterwarnings("ignore:.*(pairs mix|several versions):UserWarning")
def test_csvs_are_put_together_as_tables_are() -> None:
    """A key that is null is one value, whichever of them holds it."""
    names = ("main/trials_few_updates", "momentum/trials_few_updates", "main/advice_few_updates")
    trials = pd.concat([load(ROOT / "findings" / f"{name}.csv") for name in names])
    table = gaps(trials)
    row = table[(table["optimizer"] == "muon") & (table["arm"] == "delay_ef")]
    assert row["setting"].str.contains("momentum=0.95, num_updates=400").any()
    assert not row["setting"].str.contains("None|nan").any()
