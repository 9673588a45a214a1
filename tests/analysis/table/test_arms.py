"""An arm is named by its counted delay and its config, and what it is made of is in columns."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipegap.analysis import gaps, load
from pipegap.analysis.table.rows import arm_columns
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.names import names
from tests.support.synthetic_store import (
    FEEDBACK,
    NONE,
    SYNC,
    TWO_BUFFERED,
    config,
    put,
    result,
    write,
)

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
