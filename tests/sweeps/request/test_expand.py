"""A sweep asks for every combination, and for each trial once."""

import sys
from pathlib import Path

import pandas as pd
import pytest

from pipegap import sweeps
from pipegap.sweeps.request.expand import points
from pipegap.sweeps.request.schema import check_sweep
from pipegap.trainer.base.places import CODE_ROOT
from tests.support.sweep_requests import ARMS, asked, content, expand, only


def test_every_combination_is_asked_once(tmp_path: Path) -> None:
    grid = {"optimizer": ["adamw", "muon"], "optimizer.lr": [0.01, 0.02]}
    sweep = check_sweep(content(grid=grid, seeds=[0, 3]))
    trials = expand(sweep, tmp_path)
    assert len(asked(sweep, tmp_path)) == len(trials) == 2 * 2 * 3 * 2
    assert len({trial.plan.trial_id for trial in trials}) == len(trials)
    assert {(t.config["optimizer"]["lr"], t.config["seed"]) for t in trials} == {
        (lr, seed) for lr in (0.01, 0.02) for seed in (0, 3)
    }


def test_a_trial_that_several_points_ask_for_is_one_trial(tmp_path: Path) -> None:
    """λ does not exist for sync and delay: their trials are shared by all λ."""
    twins = {**ARMS, "again": ["pipeline=pipedream_2bw", "correction=none"]}
    sweep = check_sweep(content(arms=twins))
    assert len(asked(sweep, tmp_path)) == 4
    assert len(expand(sweep, tmp_path)) == 3


def test_a_mapping_in_the_grid_moves_keys_together(tmp_path: Path) -> None:
    pairs = [{"optimizer": "muon", "optimizer.lr": 0.5}, {"optimizer": "adamw"}]
    trials = expand(check_sweep(content(grid={"pair": pairs})), tmp_path)
    seen = {(t.config["optimizer"]["_target_"][-4:], t.config["optimizer"]["lr"]) for t in trials}
    assert seen == {("muon", 0.5), ("damw", 0.002)}


def test_arms_of_a_point_differ_in_pipeline_and_correction_only(tmp_path: Path) -> None:
    sync, *others = (t.config for t in expand(check_sweep(content()), tmp_path))
    for other in others:
        arms = {"pipeline", "correction"}
        assert {key for key in sync if sync[key] != other[key]} <= arms | {"choices"}
        assert {
            key for key, value in sync["choices"].items() if value != other["choices"][key]
        } <= arms


def test_a_sweep_of_batch_sizes_holds_the_tokens(tmp_path: Path) -> None:
    trials = expand(check_sweep(content(grid={"batch_size": [8, 16, 32]})), tmp_path)
    assert {trial.plan.tokens for trial in trials} == {400 * 16 * 128}


def test_a_list_of_the_grid_is_replaced_mappings_included(tmp_path: Path) -> None:
    values = "[sgd, {optimizer: muon, optimizer.lr: 0.5}]"
    sweep = only("sweep=optimizers", f"grid.optimizer={values}")
    rates = [point.configs["sync"]["optimizer"]["lr"] for point in points(sweep, tmp_path)]
    assert rates == [0.004, 0.5]


def test_a_study_finds_its_own_code_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trials are those of its table."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "data").symlink_to(CODE_ROOT / "data")
    trials = expand(only("sweep=predictors", "scale=tiny"), tmp_path)
    table = pd.read_csv(CODE_ROOT / "findings" / "predictors" / "trials_tiny.csv")
    assert {trial.plan.trial_id for trial in trials} == {*table["trial_id"]}


def test_the_public_names_plan_a_sweep(tmp_path: Path) -> None:
    assert all(getattr(sweeps, name) for name in sweeps.__all__)
    words = ["sweep=main", "scale=micro", "seeds=[0]", "advice=null", f"results={tmp_path}"]
    [plan] = sweeps.plan_sweeps(sweeps.parse_request(words))
    assert len({trial.plan.trial_id for trial in plan.planned}) == 2 * 3
