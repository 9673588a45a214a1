"""A results folder, or the CSV that a report made of it, becomes one tidy table with names that
people write.
"""

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from pipegap.analysis import advise, best, gaps, load
from pipegap.analysis.__main__ import main
from pipegap.analysis.report.report import report
from pipegap.analysis.table import names as arm_names
from pipegap.analysis.table.load import NEEDED, OF_EVERY_TRIAL
from pipegap.analysis.table.metrics import validation_losses
from pipegap.analysis.table.rows import arm_columns
from pipegap.analysis.table.schema import TRIAL
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.identity import names
from tests.support.pages import FEW, with_figures
from tests.support.synthetic_store import (
    ALL_ARMS,
    FEEDBACK,
    LOSSES,
    NONE,
    SYNC,
    TWO_BUFFERED,
    config,
    put,
    result,
    write,
    write_arms,
    write_sweep,
)

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
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A store with a diverged trial, a key that is null and lists; and the CSV of its report."""
    folder = tmp_path_factory.mktemp("published")
    store = folder / "store"
    for length, level in ((200, 2.0), (400, 1.8)):
        for arm, gap in (("sync", 0.0), ("delay", 0.123456789012345), ("delay_ef", 0.05)):
            losses = [level + gap, level + gap + 0.01, None if arm == "delay" else level + gap]
            put(store, arm, losses, num_updates=length, clip_norm=None, eps=1e-8, decay=1.0)
    with with_figures(FEW):
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


# A published CSV that is no table of trials is refused in a line that names line and column.

Table = list[list[str]]


@pytest.fixture(scope="module")
def published_of_published(tmp_path_factory: pytest.TempPathFactory) -> Table:
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
def test_a_malformed_table_is_refused(
    name: str, published_of_published: Table, tmp_path: Path
) -> None:
    damage, says = DAMAGES[name]
    path = written(damage(published_of_published), tmp_path)
    with pytest.raises(BadInput, match=r"must be a trials\.csv of a report") as refused:
        load(path)
    assert says in str(refused.value)
    assert len(str(refused.value)) < 1_000


def test_another_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trials.csv").touch()
    assert main([f"results={tmp_path / 'trials.csv'}", f"out={tmp_path / 'out'}"]) == 2
    errors = capsys.readouterr().err
    assert (errors.count("\n"), "it lacks trial_id" in errors) == (1, True)


# An arm is named by its counted delay and its config, and what it is made of is in columns.

PER_STAGE = {**TWO_BUFFERED, "_target_": "pipegap.trainer.schedules.pipedream"}
CONSTANT = {**TWO_BUFFERED, "_target_": "pipegap.trainer.schedules.constant_delay", "delay": 3}
TAYLOR = {"_target_": "pipegap.trainer.corrections.taylor.Taylor", "coefficient": 1000.0}
GRADIENT = {"_target_": "pipegap.trainer.corrections.error_feedback_gradient.X", "coefficient": 1.0}
ADAPTIVE = {"_target_": "pipegap.trainer.corrections.adaptive_error_feedback.Adaptive"}
LOOK = {"_target_": "pipegap.trainer.corrections.ema_nesterov.EmaNesterov", "coefficient": 0.0}
PREDICTION = {"_target_": "pipegap.trainer.corrections.prediction.Prediction", "coefficient": 0.3}


@pytest.mark.parametrize(
    ("pipeline", "correction", "delays", "name", "base"),
    [
        (SYNC, NONE, [0], "sync", "sync"),
        (SYNC, FEEDBACK, [0, 0], "sync", "sync"),
        (PER_STAGE, NONE, [0], "sync", "sync"),
        (SYNC, LOOK, [0], "sync_ema_nesterov", "sync"),
        (SYNC, {**LOOK, "look_ahead": 0.3}, [0], "sync_ema_nesterov(look_ahead=0.3)", "sync"),
        (TWO_BUFFERED, LOOK, [1], "delay_ema_nesterov", "delay"),
        (TWO_BUFFERED, {**LOOK, "coefficient": 1.0}, [1], "delay_ema_nesterov(1)", "delay"),
        (PER_STAGE, NONE, [1, 0], "pipedream", "pipedream"),
        (TWO_BUFFERED, NONE, [1], "delay", "delay"),
        (TWO_BUFFERED, NONE, None, "delay", "delay"),
        (TWO_BUFFERED, FEEDBACK, [1], "delay_ef", "delay"),
        (TWO_BUFFERED, {**FEEDBACK, "coefficient": 0.5}, [1], "delay_ef(0.5)", "delay"),
        (TWO_BUFFERED, {**FEEDBACK, "lag": "delay"}, [1], "delay_ef(lag=delay)", "delay"),
        (TWO_BUFFERED, {**FEEDBACK, "lag": 1}, [1], "delay_ef", "delay"),
        (TWO_BUFFERED, TAYLOR, [1], "delay_taylor(1000)", "delay"),
        (TWO_BUFFERED, {**TAYLOR, "coefficient": 1.0}, [1], "delay_taylor(1)", "delay"),
        (TWO_BUFFERED, {**TAYLOR, "coefficient": 1e-5}, [1], "delay_taylor(1e-05)", "delay"),
        (TWO_BUFFERED, GRADIENT, [1], "delay_ef_gradient", "delay"),
        (TWO_BUFFERED, {**GRADIENT, "coefficient": 2.0}, [1], "delay_ef_gradient(2)", "delay"),
        (TWO_BUFFERED, ADAPTIVE, [1], "delay_adaptive_ef", "delay"),
        (CONSTANT, FEEDBACK, [3], "constant_delay(3)_ef", "constant_delay(3)"),
        (CONSTANT, PREDICTION, [3], "constant_delay(3)_prediction(0.3)", "constant_delay(3)"),
        ({**TWO_BUFFERED, "synchronous_start": 0.1}, NONE, [1], "delay+start(0.1)", None),
        ({**TWO_BUFFERED, "synchronous_cooldown": 40}, FEEDBACK, [1], "delay_ef+cooldown(40)",
         "delay+cooldown(40)"),
    ],
)  # fmt: skip
def test_arms_are_named_by_counted_delay_and_config(
    pipeline: dict[str, Any],
    correction: dict[str, Any],
    delays: list[int] | None,
    name: str,
    base: str | None,
) -> None:
    settings = {"pipeline": pipeline, "correction": correction}
    outcome = {"status": "completed", "delays": delays}
    columns = arm_columns(settings, outcome)
    assert (columns["arm"], columns["base_arm"]) == (name, base or name)


@pytest.mark.parametrize(
    ("pipeline", "correction", "delays", "made_of"),
    [
        (SYNC, NONE, [0], (0, None, None, 0, 0)),
        (TWO_BUFFERED, NONE, None, (None, None, None, 0, 0)),
        (TWO_BUFFERED, FEEDBACK, [1], (1, 1.0, "1", 0, 0)),
        (TWO_BUFFERED, {**FEEDBACK, "coefficient": 0.5}, [1], (1, 0.5, "1", 0, 0)),
        (TWO_BUFFERED, {**FEEDBACK, "lag": "delay"}, [1], (1, 1.0, "delay", 0, 0)),
        (TWO_BUFFERED, TAYLOR, [1], (1, 1000.0, None, 0, 0)),
        (PER_STAGE, NONE, [3, 2, 1, 0], (3, None, None, 0, 0)),
        ({**TWO_BUFFERED, "synchronous_start": 0.1}, NONE, [1], (1, None, None, 0.1, 0)),
        ({**TWO_BUFFERED, "synchronous_cooldown": 40}, NONE, [1], (1, None, None, 0, 40)),
    ],
)
def test_what_an_arm_is_made_of_is_in_columns(
    pipeline: dict[str, Any],
    correction: dict[str, Any],
    delays: list[int] | None,
    made_of: tuple[Any, ...],
    tmp_path: Path,
) -> None:
    """Nobody has to parse its name; a value that the config leaves out is the usual one."""
    settings = config() | {"pipeline": pipeline, "correction": correction}
    write(tmp_path, settings, result(settings, 1.5, delays=delays))
    row = load(tmp_path)[["delay", "coefficient", "lag", "start", "cooldown"]].iloc[0]
    assert tuple(None if pd.isna(value) else value for value in row) == made_of


def test_a_correction_is_what_it_does_by_whatever_name(tmp_path: Path) -> None:
    settings = config("delay_ef")
    write(tmp_path, settings, result(settings, 1.5))
    settings["choices"] = names(settings) | {"correction": "mine"}
    write(tmp_path, settings, result(settings, 1.5))
    table = load(tmp_path)
    assert table["correction"].tolist() == ["error_feedback", "mine"]
    assert set(table["method"]) == {"error_feedback"}
    assert set(table["schedule"]) == {"pipedream_2bw"}


def test_an_arm_knows_what_it_is_without_its_cooldown() -> None:
    both = {**TWO_BUFFERED, "synchronous_start": 0.1, "synchronous_cooldown": 40}
    columns = arm_columns({"pipeline": both, "correction": FEEDBACK}, {"delays": [1]})
    assert columns["arm"] == "delay_ef+start(0.1)+cooldown(40)"
    assert columns["arm_without_cooldown"] == "delay_ef+start(0.1)"


def test_a_trial_that_diverged_in_its_synchronous_start_is_not_called_sync() -> None:
    settings = {"pipeline": {**TWO_BUFFERED, "synchronous_start": 9}, "correction": NONE}
    columns = arm_columns(settings, {"status": "diverged", "delays": [0]})
    assert columns["arm"] == "delay+start(9)"


OWN = [
    ("pipeline", "mine.late"),
    ("pipeline", "sync.sync"),
    ("pipeline", "delay.delay"),
    ("pipeline", "delay_ef.delay_ef"),
    ("correction", "error_feedback.Reversed"),
    ("correction", "error_feedback.ErrorFeedback"),
    ("correction", "ef.Ef"),
    ("correction", "taylor.Taylor"),
    ("correction", "none.NoCorrection"),
    ("correction", "mine.First"),
    ("correction", "mine.Second"),
    ("correction", "my_idea.MyIdea"),
    ("correction", "my_idea.my_idea"),
    ("correction", "my.idea.MyIdea"),
]
"""Groups and addresses of choices of one's own, some called as ours or as each other."""


def test_a_choice_of_ones_own_takes_no_other_arms_place(tmp_path: Path) -> None:
    """Wherever its code lies and whatever it is called: its losses are in no other gap."""
    for arm, loss in (("sync", 1.0), ("delay", 1.2), ("delay_ef", 1.1)):
        put(tmp_path, arm, [loss] * 2)
    for number, (group, address) in enumerate(OWN):
        for seed in range(2):
            settings = config("delay_ef" if group == "correction" else "delay", seed=seed)
            settings[group] = {**settings[group], "_target_": address}
            made_by = {"sources": {group: f"{number:016x}"}, "delays": [1]}
            write(tmp_path, settings, result(settings, 2.0 + number, **made_by))
    losses = gaps(load(tmp_path)).set_index("arm")["loss"]
    assert losses[["delay", "delay_ef"]].to_list() == [1.2, 1.1]
    assert sorted(losses.drop(["delay", "delay_ef"])) == [
        2.0 + number for number in range(len(OWN))
    ]
    assert {"delay_my_idea(1)", "delay_mine.First(1)", "delay_taylor.Taylor(1)"} <= {*losses.index}


def test_code_of_ones_own_that_was_changed_is_another_arm(tmp_path: Path) -> None:
    """As an optimizer of one's own is another point. An arm of one source needs no digest."""
    for digest in ("ab" * 8, "cd" * 8):
        settings = config("delay_ef", seed=0)
        settings["correction"] = {"_target_": "my_idea.MyIdea", "share": 0.5}
        write(tmp_path, settings, result(settings, 1.5, sources={"correction": digest}))
        digests = {"~abababab", "~cdcdcdcd"} if digest.startswith("cd") else {""}
        table = load(tmp_path)
        assert {*table["arm"]} == {f"delay_my_idea(share=0.5){each}" for each in digests}
    assert {*table["base_arm"]} == {"delay"}


def test_a_correction_that_looks_ahead_is_not_the_baseline(tmp_path: Path) -> None:
    """Whether it does its class says, and the result of its trial."""
    push = {"_target_": "push.Push", "size": 1.02}
    assert arm_columns({"pipeline": SYNC, "correction": push}, {"delays": [0]})["arm"] == "sync"
    outcome = {"delays": [0], "looks_ahead": True}
    columns = arm_columns({"pipeline": SYNC, "correction": push}, outcome)
    assert (columns["arm"], columns["base_arm"]) == ("sync_push(size=1.02)", "sync")
    for arm, loss in (("sync", 1.0), ("delay", 1.2)):
        put(tmp_path, arm, [loss])
    settings = config("sync") | {"correction": push}
    write(tmp_path, settings, result(settings, 1.8, looks_ahead=True))
    assert gaps(load(tmp_path))["gap"].to_list() == pytest.approx([0.2, 0.8])


def test_trials_of_one_arm_and_seed_are_made_of_the_same(tmp_path: Path) -> None:
    """As in a table of an earlier version, which called a choice of one's own as ours."""
    put(tmp_path, "sync", [1.0])
    put(tmp_path, "delay_ef", [1.1])
    settings = config("delay_ef")
    write(tmp_path, settings, result(settings, 1.2))
    table = load(tmp_path)
    assert gaps(table)["loss"].to_list() == [1.2], "the newest counts"
    is_newest = table["final_val_loss"] == 1.2
    for key, value in (
        ("correction._source_", "ab" * 8),
        ("correction.coefficient", 0.5),
        ("method", "x"),
    ):
        values = table[key].astype(object) if key in table else pd.Series(index=table.index)
        with pytest.raises(BadInput, match="trials of arm delay_ef, seed 0, differ in it") as error:
            gaps(table.assign(**{key: values.mask(is_newest, value)}))
        assert error.value.key == key
    lacking = table.assign(**{"correction.lag": pd.Series(1, table.index).mask(is_newest)})
    assert gaps(lacking)["loss"].to_list() == [1.2], "an older trial has no such key"


# Names as people write them: every optimizer has one, and no two arms share one.

CONF = Path(__file__).parents[3] / "pipegap" / "conf"


def test_an_optimizer_has_the_name_that_its_yaml_says_or_that_of_its_file() -> None:
    assert {path.stem for path in (CONF / "optimizer").glob("*.yaml")} <= {*arm_names.OPTIMIZERS}
    assert [arm_names.optimizer(name) for name in ("normuon", "soap", "lion")] == [
        *("NorMuon", "SOAP", "Lion")
    ]
    assert arm_names.optimizer("my_own") == "My Own"


def test_arms_are_named_by_what_they_are_made_of(tmp_path: Path) -> None:
    write_sweep(tmp_path, "optimizers", optimizers=["adamw"], seeds=1, arms=ALL_ARMS)
    arms = arm_names.arms(load(tmp_path))
    assert arms["delay_ef"] == "delay + EF"
    assert arms["delay_ef(0.25)"] == "delay + EF (λ = 0.25)"
    assert arms["delay_ef_gradient"] == "delay + EF on gradients"
    assert arms["delay_taylor(1000)"] == "delay + Taylor (λ = 1,000)"
    assert arms["delay_ef+start(0.1)"] == "delay + EF, sync start 10 %"
    assert len({*arms.values()}) == len(arms)


def test_what_has_no_name_here_keeps_its_label() -> None:
    row = {"schedule": "pipedream_2bw", "method": "taylor", "coefficient": 1.0, "lag": None}
    arms = pd.DataFrame(
        [
            {**row, "start": 0, "cooldown": 0, "delay": 1, "arm": arm}
            for arm in ("delay_taylor(1)", "delay_taylor(1,decay=0.5)")
        ]
    )
    assert arm_names.arms(arms) == {arm: f"delay + Taylor (λ = 1) ({arm})" for arm in arms["arm"]}


@pytest.mark.parametrize(
    ("text", "written"),
    [("-0.5 [-1, +2]", "−0.5 [−1, +2]"), ("1e-05", "1e-05"), ("GPT-2, T-3", "GPT-2, T-3")],
)
def test_a_minus_is_one_where_a_number_is_negative(text: str, written: str) -> None:
    assert arm_names.minus(text) == written


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("muon (optimizer.lr=0.004), delay_ef", "Muon (learning rate 0.004), delay + EF"),
        ("adamw -0.5 n=3", "AdamW −0.5 n=3"),
        ("batch_size 8; lr_schedule=inverse_sqrt", "batch size 8; schedule inverse square root"),
        ("delay_ef(0.25) of mine", "delay_ef(0.25) of mine"),
        ("not run: sweep=batch_size results=my/muon", "not run: sweep=batch_size results=my/muon"),
    ],
)
def test_a_sentence_about_keys_is_told_in_their_names(text: str, written: str) -> None:
    assert arm_names.prose(text) == written
