"""A search asks Optuna again by what the store has, keeps pairs whole, and spends its budget."""

import csv
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest

from pipegap.sweeps.plan.choosing import Choice, check_reach, choose
from pipegap.sweeps.plan.sweep_plan import judge
from pipegap.sweeps.plan.tried import remarks, write
from pipegap.sweeps.request.expand import points
from pipegap.sweeps.request.schema import Sweep, check_sweep
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.snapshot import Snapshot
from tests.support.records import leave_loss

RATE, DECAY, LAMBDA = "optimizer.lr", "optimizer.weight_decay", "correction.coefficient"
ARMS = {
    "sync": ["pipeline=sync"],
    "delay_ef": ["pipeline=pipedream_2bw", "correction=error_feedback"],
}
SEARCH = {
    "budget": 9,
    "at_once": 4,
    "seeds": [1000, 1001],
    "sampler_seed": 3,
    "space": {RATE: {"factors": [0.25, 4]}, LAMBDA: {"range": [0, 2]}, "batch_size": [8, 16]},
}
LONGER = {"budget": 14}
"""More settings than TPE draws before it looks at a loss."""
Loss = Callable[[str, dict[str, Any]], float | None]
"""Final loss by arm and config; None diverges."""


def sweep(search: dict[str, Any] | None = None, **changes: Any) -> Sweep:
    plain = {"base": [f"{RATE}=0.004", "num_updates=40"], "grid": {"optimizer": ["adamw"]}}
    asked = {**SEARCH, **(search or {})}
    return check_sweep({**plain, "arms": ARMS, "seeds": [3, 5], "search": asked, **changes})


def bowl(arm: str, config: dict[str, Any]) -> float:
    """Sync is best at a rate of 0.008, the other arm at 0.002 and a λ of 1.5."""
    lowest = 0.008 if arm == "sync" else 0.002
    coefficient = config["correction"].get("coefficient", 1.5)
    rate = math.log(config["optimizer"]["lr"] / lowest) ** 2
    return 2 + rate + (coefficient - 1.5) ** 2 + config["batch_size"] / 100


def asked(swept: Sweep, store: Path) -> Choice:
    [choice] = choose(swept, [*map(Choice, points(swept, store))], Snapshot())
    return choice


def run_to_the_end(swept: Sweep, store: Path, loss: Loss, most: int = 10_000) -> Choice:
    """The point once it is settled, or after `most` trials; each trial runs once."""
    while not (choice := asked(swept, store)).settled:
        for trial in choice.choosing:
            if not trial.folder.exists():
                if most == 0:
                    return choice
                leave_loss(trial.folder, loss(trial.arm, trial.config))
                most -= 1
    return choice


def values(choice: Choice) -> list[dict[str, Any]]:
    return [setting.values for setting in choice.tried]


def test_the_settings_are_those_that_optuna_proposes(tmp_path: Path) -> None:
    """The oracle is a study of Optuna's own, which is told the mean over arms and seeds. Its first
    ten proposals are random; the others are made of what it was told."""
    choice = run_to_the_end(sweep(LONGER), tmp_path, bowl)
    sampler = optuna.samplers.TPESampler(seed=3)
    study = optuna.create_study(sampler=sampler, direction="minimize")
    expected = []
    for number in (4, 4, 4, 2):
        trials = [study.ask() for _ in range(number)]
        drawn = [
            (
                trial.suggest_float(RATE, 0.001, 0.016, log=True),
                trial.suggest_float(LAMBDA, 0, 2),
                trial.suggest_categorical("batch_size", [8, 16]),
            )
            for trial in trials
        ]
        for trial, (*numbers, size) in zip(trials, drawn, strict=True):
            rate, coefficient = (float(f"{number:.4g}") for number in numbers)
            expected.append({RATE: rate, LAMBDA: coefficient, "batch_size": size})
            optimizer, correction = {"lr": rate}, {"coefficient": coefficient}
            config = {"optimizer": optimizer, "batch_size": size}
            of_sync = bowl("sync", {**config, "correction": {}})
            of_arm = bowl("delay_ef", {**config, "correction": correction})
            study.tell(trial, (of_sync + of_arm) / 2)
    assert values(choice) == expected


def test_every_setting_is_trained_by_every_arm_at_the_seeds_of_choice_alone(tmp_path: Path) -> None:
    choice = run_to_the_end(sweep(), tmp_path, bowl)
    for setting in choice.tried:
        seen = [(trial.arm, trial.config["seed"]) for trial in setting.trials]
        assert seen == [(arm, seed) for arm in ARMS for seed in (1000, 1001)]
        for trial in setting.trials:
            assert trial.config["optimizer"]["lr"] == setting.values[RATE]
        assert "coefficient" not in setting.trials[0].config["correction"]
        assert setting.trials[-1].config["correction"]["coefficient"] == setting.values[LAMBDA]
    assert len(choice.choosing) == 9 * 2 * 2
    assert {trial.config["seed"] for trial in choice.arms} == {3, 5}
    assert len({trial.config["batch_size"] for trial in choice.choosing}) == 2
    assert len({trial.plan.tokens for trial in choice.choosing}) == 1, "whatever the batch size"


def test_each_arm_is_compared_at_the_best_setting_of_each(tmp_path: Path) -> None:
    choice = run_to_the_end(sweep(), tmp_path, bowl)
    for arm in ARMS:
        losses = [
            next(bowl(arm, t.config) for t in setting.trials if t.arm == arm)
            for setting in choice.tried
        ]
        assert choice.chosen[arm] is choice.tried[losses.index(min(losses))]
    assert [*choice.chosen] == [*ARMS]
    rates = [choice.chosen[arm].values[RATE] for arm in ARMS]
    assert rates[0] > rates[1]
    expected = [(rate, arm, seed) for rate in rates for arm in ARMS for seed in (3, 5)]
    seen = [(t.config["optimizer"]["lr"], t.arm, t.config["seed"]) for t in choice.arms]
    assert seen == expected


@pytest.mark.parametrize("most", [3, 46])
def test_a_search_that_was_killed_goes_on_as_if_nothing_had_been(most: int, tmp_path: Path) -> None:
    whole = run_to_the_end(sweep(LONGER), tmp_path / "whole", bowl)
    before = run_to_the_end(sweep(LONGER), tmp_path / "killed", bowl, most)
    assert len(before.tried) % 4 == 0
    after = run_to_the_end(sweep(LONGER), tmp_path / "killed", bowl)
    assert values(after) == values(whole)
    assert {arm: s.values for arm, s in after.chosen.items()} == {
        arm: s.values for arm, s in whole.chosen.items()
    }
    trials = {trial.plan.trial_id for trial in whole.choosing}
    assert {path.name for path in (tmp_path / "killed" / "trials").iterdir()} == trials


def test_nothing_is_told_and_no_arm_runs_while_a_trial_is_open(tmp_path: Path) -> None:
    first = asked(sweep(), tmp_path)
    assert (len(first.tried), first.settled, first.chosen) == (4, False, {})
    assert judge(sweep(), [first], Snapshot())[0].runnable == first.choosing
    for trial in first.choosing[:-1]:
        leave_loss(trial.folder, 1.0)
    assert values(asked(sweep(), tmp_path)) == values(first)


def test_other_seeds_of_the_sampler_propose_other_settings(tmp_path: Path) -> None:
    one, other = (values(asked(sweep({"sampler_seed": n}), tmp_path)) for n in (0, 1))
    assert not [setting for setting in one if setting in other]


def test_where_sync_diverged_nothing_is_chosen_and_a_late_arm_is_left_out(tmp_path: Path) -> None:
    def no_sync(arm: str, config: dict[str, Any]) -> float | None:
        return None if arm == "sync" and config["optimizer"]["lr"] > 0.002 else 1.0

    choice = run_to_the_end(sweep(), tmp_path / "some", no_sync)
    assert all(setting.values[RATE] <= 0.002 for setting in choice.chosen.values())
    choice = run_to_the_end(sweep(), tmp_path / "none", lambda arm, config: None)
    assert (choice.chosen, [*choice.arms]) == ({}, [])
    assert "optimizer=adamw is left out" in remarks(sweep(), [choice])[1]
    choice = run_to_the_end(sweep(), tmp_path / "late", lambda arm, _: 1 if arm == "sync" else None)
    assert [*choice.chosen] == ["sync"]


@pytest.mark.parametrize(
    ("search", "changes", "what"),
    [
        ({}, {"tune": {RATE: [1, 2]}}, r"sweep\.tune"),
        ({"seeds": [5]}, {}, r"sweep\.search\.seeds=5"),
        ({"budget": 0}, {}, r"sweep\.search\.budget=0"),
        ({"space": {RATE: {"factors": [0, 1]}}}, {}, r"space\.optimizer\.lr.*factors"),
        ({"space": {RATE: {"range": [2, 1]}}}, {}, r"space\.optimizer\.lr.*low < high"),
        ({"space": {RATE: [1]}}, {}, r"space\.optimizer\.lr.*choices"),
        ({"space": {"optimizer": ["adamw", "muon"]}}, {}, "sweep.grid sets it"),
        ({"space": {"pipeline": ["sync", "gpipe"]}}, {}, "sweep.arms sets it"),
    ],
)
def test_a_search_that_cannot_be_is_refused(
    search: dict[str, Any], changes: dict[str, Any], what: str
) -> None:
    with pytest.raises(BadInput, match=what):
        sweep(search, **changes)


@pytest.mark.parametrize(
    ("space", "what"),
    [
        ({"optimizer.lrr": {"factors": [1, 2]}}, r"lrr.*search\.space\.optimizer\.lrr=null"),
        ({"lr_schedule": ["cosine", "linear"]}, "must be a key that has one value"),
        ({RATE: {"range": [-1, 1]}}, r"optimizer\.lr=-1"),
        ({"clip_scope": {"factors": [1, 2]}}, "must be a range"),
    ],
)
def test_a_space_that_no_trial_can_have_is_refused(
    space: dict[str, Any], what: str, tmp_path: Path
) -> None:
    swept = sweep({"space": space})
    assert swept.search is not None
    with pytest.raises(BadInput, match=what):
        check_reach(swept, points(swept, tmp_path))


def test_without_optuna_one_line_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(BadInput, match=r"search=optuna: .*pip install 'pipegap\[search\]'"):
        asked(sweep(), tmp_path)


def test_every_tried_setting_is_in_the_file(tmp_path: Path) -> None:
    swept = sweep()
    choice = run_to_the_end(
        swept, tmp_path, lambda arm, c: None if c["optimizer"]["lr"] > 0.01 else bowl(arm, c)
    )
    [line] = write(swept, [choice], tmp_path / "out")
    assert "searched.csv, every setting that was tried" in line
    with (tmp_path / "out" / "searched.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row[RATE]) for row in rows] == [setting.values[RATE] for setting in choice.tried]
    assert all(bool(row["loss sync"]) == (float(row[RATE]) <= 0.01) for row in rows)
    of_sync = [row for row in rows if "sync" in row["best of"].split()]
    assert [float(row[RATE]) for row in of_sync] == [choice.chosen["sync"].values[RATE]]
