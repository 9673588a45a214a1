"""A results folder becomes one tidy table; arms and points are derived, not declared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from synthetic_store import FEEDBACK, NONE, SYNC, TWO_BUFFERED, config, result, write

from analysis import load
from analysis.arms import arm, base_arm
from analysis.schema import TRIAL
from analysis.store import validation_losses
from trainer.errors import BadInput

PER_STAGE = {**TWO_BUFFERED, "_target_": "trainer.schedules.pipedream"}
CONSTANT = {**TWO_BUFFERED, "_target_": "trainer.schedules.constant_delay", "delay": 3}
TAYLOR = {"_target_": "trainer.corrections.taylor.Taylor", "coefficient": 1000.0}
GRADIENT = {"_target_": "trainer.corrections.error_feedback_gradient.X", "coefficient": 1.0}
ADAPTIVE = {"_target_": "trainer.corrections.adaptive_error_feedback.Adaptive"}
PREDICTION = {"_target_": "trainer.corrections.prediction.Prediction", "coefficient": 0.3}


@pytest.mark.parametrize(
    ("pipeline", "correction", "delays", "name", "base"),
    [
        (SYNC, NONE, [0], "sync", "sync"),
        (SYNC, FEEDBACK, [0, 0], "sync", "sync"),
        (PER_STAGE, NONE, [0], "sync", "sync"),
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
    assert arm(settings, outcome) == name
    assert base_arm(settings, outcome) == (base or name)


def test_a_trial_that_diverged_in_its_synchronous_start_is_not_called_sync() -> None:
    settings = {"pipeline": {**TWO_BUFFERED, "synchronous_start": 9}, "correction": NONE}
    assert arm(settings, {"status": "diverged", "delays": [0]}) == "delay+start(9)"


def test_a_row_has_the_schema_and_the_dotted_config(tmp_path: Path) -> None:
    settings = config("delay_ef", seed=4)
    folder = write(tmp_path, settings, result(settings, 1.5))
    table = load(tmp_path)
    assert list(table)[: len(TRIAL)] == list(TRIAL)
    assert {name: str(table[name].dtype) for name in TRIAL} == {k: v[0] for k, v in TRIAL.items()}
    row = table.iloc[0]
    assert (row["optimizer"], row["correction"], row["model"]) == (
        "adamw",
        "error_feedback",
        "llama",
    )
    assert (row["arm"], row["seed"], row["final_val_loss"]) == ("delay_ef", 4, 1.5)
    assert (row["optimizer.lr"], row["versions.torch"]) == (0.004, "2.13.0")
    assert (row["folder"], row["delays"]) == (str(folder), [1])
    assert "optimizer._target_" not in table


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
    pd.testing.assert_frame_equal(load(str(tmp_path / "trials")), whole)
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


def test_validation_losses_are_read_up_to_the_last_whole_line(tmp_path: Path) -> None:
    rows = [{"update": 0}, {"update": 1, "val_loss": 2.5}, {"update": 2, "val_loss": None}]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"update": 3, "val_loss": 1.'
    (tmp_path / "metrics.jsonl").write_text(text)
    table = validation_losses(str(tmp_path))
    assert table["update"].tolist() == [1, 2]
    assert table["val_loss"].iloc[0] == 2.5
    assert table["val_loss"].isna().tolist() == [False, True]
    assert validation_losses(str(tmp_path / "none")).empty


def test_an_empty_store_gives_the_schema_without_rows(tmp_path: Path) -> None:
    assert list(load(tmp_path)) == list(TRIAL)
    assert load(tmp_path).empty


def test_a_missing_folder_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such folder"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("content", ['{"status": "comp', "", "[]", "\x00\x00"])
def test_a_damaged_result_is_unfinished_and_stops_no_other(tmp_path: Path, content: str) -> None:
    settings = config()
    broken, whole = (write(tmp_path, settings, result(settings, 1.5)) for _ in range(2))
    (broken / "result.json").write_text(content)
    for _ in range(2):  # an index is not allowed to hide it
        with pytest.warns(UserWarning, match=f"not whole.*{broken}/result.json"):
            table = load(tmp_path)
        assert table["status"].tolist() == ["unfinished", "completed"]
        assert table["finished_at"].isna().tolist() == [True, False]
        assert table["folder"].tolist() == [str(broken), str(whole)]
    (broken / "config.json").write_text("{")
    with pytest.warns(UserWarning, match=r"config\.json"):
        assert load(tmp_path)["trial_id"].tolist() == [whole.name]
