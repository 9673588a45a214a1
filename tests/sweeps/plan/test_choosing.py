"""The tuned value is the best of the sync arm's, whatever was killed, and is not hidden."""

import csv
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest

from pipegap.sweeps.plan.choosing import (
    MAX_BEYOND,
    MAX_EXTENSIONS,
    Choice,
    Values,
    beyond,
    check_reach,
    choose,
    remarks,
    tune,
    write,
)
from pipegap.sweeps.plan.sweep_plan import judge
from pipegap.sweeps.request.expand import points
from pipegap.sweeps.request.schema import Sweep, check_sweep
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.snapshot import Snapshot
from tests.support import small_sweep
from tests.support.trials import leave_loss

ARMS = {"sync": ["pipeline=sync"], "delay": ["pipeline=pipedream_2bw"]}
KEY = "optimizer.lr"
DECAY = "optimizer.weight_decay"
BOTH = {KEY: [0.5, 1, 2], DECAY: [0.5, 1, 2]}
Loss = Callable[..., float | None]
"""Of one value for each tuned key; None if the trial diverges."""


def sweep(**changes: Any) -> Sweep:
    plain = {"base": [f"{KEY}=0.004"], "grid": {"optimizer": ["adamw"]}, "arms": ARMS}
    return check_sweep(
        {**plain, "seeds": [3, 5], "tune": {KEY: [0.5, 1, 2]}, "verdict": "none", **changes}
    )


def run_to_the_end(swept: Sweep, store: Path, loss: Loss) -> tuple[Choice, list[Values]]:
    """The settled point, and the values in the order in which they were tried."""
    [point] = points(swept, store)
    order: list[Values] = []
    while not (choice := tune(swept, point, Snapshot())).settled:
        for setting in choice.tried:
            [trial] = setting.trials
            if not trial.folder.exists():
                values = tuple(setting.values.values())
                leave_loss(trial.folder, loss(*values))
                order.append(values)
    return choice, order


def chosen(choice: Choice) -> Values | None:
    """The chosen values; None if there are none."""
    return next((tuple(s.values.values()) for s in choice.best_of_arms.values()), None)


def bowl(lowest: float) -> Loss:
    return lambda value: abs(math.log(value / lowest))


def test_the_best_value_is_for_all_arms_and_seeds_and_shares_its_sync_trial(tmp_path: Path) -> None:
    choice, _ = run_to_the_end(sweep(), tmp_path, bowl(0.004))
    assert [(t.arm, t.config["seed"], t.config["optimizer"]["lr"]) for t in choice.arms] == [
        (arm, seed, 0.004) for arm in ("sync", "delay") for seed in (3, 5)
    ]
    assert {(t.arm, t.config["seed"]) for t in choice.choosing} == {("sync", 3)}
    assert choice.tried[1].trials[0].plan.trial_id == choice.arms[0].plan.trial_id


def test_a_seed_that_compares_nothing_tunes_and_the_decay_goes_against_the_rate(
    tmp_path: Path,
) -> None:
    """Rate times decay is that of the point at each value, beyond the factors too."""
    swept = sweep(base=[f"{KEY}=0.004", f"{DECAY}=0.16"], tuning={"seed": 9, "inverse": [DECAY]})
    choice, order = run_to_the_end(swept, tmp_path, lambda lr, decay: bowl(0.016)(lr))
    assert order == [
        *((0.002, 0.32), (0.004, 0.16), (0.008, 0.08)),
        *((0.016, 0.04), (0.032, 0.02)),
    ]
    assert {(t.arm, t.config["seed"]) for t in choice.choosing} == {("sync", 9)}
    arms = [(t.arm, t.config["seed"], t.config["optimizer"]) for t in choice.arms]
    assert [(arm, seed) for arm, seed, _ in arms] == [
        (arm, seed) for arm in ("sync", "delay") for seed in (3, 5)
    ]
    assert {(o["lr"], o["weight_decay"]) for *_, o in arms} == {(0.016, 0.04)}
    assert (
        "at seed 9, which compares nothing; optimizer.weight_decay" in remarks(swept, [choice])[0]
    )
    [*write(swept, [choice], tmp_path / "out")]
    with (tmp_path / "out" / "tuned.csv").open() as file:
        assert next(float(row[DECAY]) for row in csv.DictReader(file)) == 0.32


# name → loss, the rate that is chosen, the rates that are tried after 0.002, 0.004 and 0.008
LOSSES: dict[str, tuple[Loss, float, list[float]]] = {
    "inside": (bowl(0.004), 0.004, []),
    "equal": (lambda lr: 1.0 if 0.003 < lr < 0.01 else 2.0, 0.004, []),
    "above": (bowl(0.016), 0.016, [0.016, 0.032]),
    "below": (bowl(0.001), 0.001, [0.001, 0.0005]),
    "two values beyond at most": (bowl(0.00025), 0.0005, [0.001, 0.0005]),
    "less than seeds differ by": (lambda lr: 2 + lr, 0.002, []),
    "one step that gains": (lambda lr: 2 + max(lr - 0.0011, 0) * 10, 0.0005, [0.001, 0.0005]),
    "a diverged one is the worst": (lambda lr: None if lr > 0.003 else 9.0 - lr, 0.002, [0.001]),
    "all factors diverge": (
        lambda lr: None if lr > 0.0006 else bowl(0.00025)(lr),
        0.00025,
        [0.001, 0.0005, 0.00025, 0.000125],
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_lowest_loss_wins_and_a_best_value_on_the_edge_extends_the_grid(
    name: str, tmp_path: Path
) -> None:
    loss, best, more = LOSSES[name]
    choice, order = run_to_the_end(sweep(), tmp_path, loss)
    assert (chosen(choice), order) == ((best,), [(lr,) for lr in (0.002, 0.004, 0.008, *more)])


def test_the_extension_is_bounded_and_the_edge_is_named(tmp_path: Path) -> None:
    swept = sweep()
    choice, order = run_to_the_end(swept, tmp_path, bowl(100.0))
    assert len(order) == 3 + MAX_BEYOND
    assert chosen(choice) == max(order) == (0.032,)
    edge = "optimizer.lr=0.032, on the edge of what was tried: no more values are tried"
    assert edge in remarks(swept, [choice])[1]


def test_where_a_step_gains_less_than_seeds_differ_by_tuning_ends_and_says_so(
    tmp_path: Path,
) -> None:
    """A loss that still falls in its fifth digit asks for no more rounds."""
    swept = sweep()
    choice, order = run_to_the_end(swept, tmp_path, lambda lr: 2 + lr / 100)
    assert (chosen(choice), len(order)) == ((0.002,), 3)
    assert "the last step gained 0.0000, less than seeds differ by" in remarks(swept, [choice])[1]


def test_a_value_that_two_kinds_of_machine_chose_says_so(tmp_path: Path) -> None:
    swept = sweep()
    choice, _ = run_to_the_end(swept, tmp_path, lambda lr: 1.0 + abs(lr - 0.004))
    assert len(remarks(swept, [choice])) == 2
    [path, *_] = sorted(tmp_path.rglob("result.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "device_name": "NVIDIA H100"}))
    [point] = points(swept, tmp_path)
    *_, said = remarks(swept, [tune(swept, point, Snapshot())])
    assert said.startswith("optimizer=adamw: trials of several kinds of machine chose")
    assert "NVIDIA H100" in said


def test_a_point_whose_every_value_diverged_is_left_out(tmp_path: Path) -> None:
    swept = sweep()
    choice, order = run_to_the_end(swept, tmp_path, lambda lr: None)
    assert (chosen(choice), [*choice.arms], len(order)) == (None, [], 3 + MAX_EXTENSIONS)
    assert "optimizer=adamw is left out" in remarks(swept, [choice])[1]


def test_until_it_is_settled_the_plan_is_an_estimate_and_no_arm_runs(tmp_path: Path) -> None:
    swept = sweep()
    [point] = points(swept, tmp_path)
    choice = tune(swept, point, Snapshot())
    assert (choice.settled, chosen(choice)) == (False, None)
    assert {trial.config["optimizer"]["lr"] for trial in choice.arms} == {0.004}
    assert judge(swept, [choice], Snapshot())[0].runnable == choice.choosing
    leave_loss(choice.choosing[-1].folder, 1.0)
    assert not tune(swept, point, Snapshot()).settled


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ({1.0: 3.0, 2.0: 2.0, 4.0: 3.0}, []),
        ({1.0: 3.0, 3.0: 2.0}, [9.0]),
        ({1.0: 2.0, 3.0: 2.0}, []),
        ({1.0: 2.0, 3.0: 2.01}, [1 / 3]),
        ({1.0: 2.0, 3.0: 2.004}, []),
        ({1.0: 3.0, 2.0: None}, []),
        ({1.0: math.inf, 2.0: math.inf}, [0.5]),
        ({2.0**n: -n for n in range(2 + MAX_EXTENSIONS)}, []),
    ],
)
def test_what_is_tried_next(losses: Mapping[float, float | None], expected: list[float]) -> None:
    in_one_key: dict[Values, float | None] = {(value,): loss for value, loss in losses.items()}
    assert beyond(in_one_key, [2]) == [(value,) for value in expected]


@pytest.mark.parametrize(
    ("best_at", "expected"),
    [
        ((1.0, 1.0), [(0.5, 1.0), (1.0, 1 / 3)]),
        ((1.0, 3.0), [(0.5, 3.0), (1.0, 9.0)]),
        ((2.0, 1.0), [(4.0, 1.0), (2.0, 1 / 3)]),
        (None, [(0.5, 1 / 3)]),
    ],
)
def test_of_two_keys_what_lies_beside_the_best_along_one_is_tried(
    best_at: Values | None, expected: list[Values]
) -> None:
    four = [(lr, decay) for lr in (1.0, 2.0) for decay in (1.0, 3.0)]
    lost = math.inf if best_at is None else 3.0
    assert beyond({at: 2.0 if at == best_at else lost for at in four}, [2, 2]) == expected


@pytest.mark.parametrize("lowest", [(0.004, 0.1), (0.016, 0.025), (0.001, 0.4)])
def test_of_two_keys_the_lowest_is_found_wherever_it_lies(lowest: Values, tmp_path: Path) -> None:
    """Also one that no factor of either key reaches; few more than nine are tried."""

    def loss(lr: float, decay: float) -> float:
        return math.log(lr / lowest[0]) ** 2 + math.log(decay / lowest[1]) ** 2

    choice, order = run_to_the_end(sweep(tune=BOTH), tmp_path, loss)
    assert chosen(choice) == pytest.approx(lowest)
    assert len(order) == len({*order}) <= 9 + 3 * 4
    assert {
        (t.config["optimizer"]["lr"], t.config["optimizer"]["weight_decay"]) for t in choice.arms
    } == {chosen(choice)}


def shared_store(store: Path) -> tuple[Sweep, list[Choice]]:
    """A sweep that shares what is best for AdamW, run to the end. The best rate goes with a key."""
    own = {"optimizer": "lion", KEY: 0.0005}
    grid = {"optimizer": ["muon", "adamw", own], "clip_norm": [1, 2]}
    swept = sweep(grid=grid, shared="adamw")
    tuned = choose(swept, [*map(Choice, points(swept, store))], Snapshot())
    while not all(choice.settled for choice in tuned):
        for trial in (trial for choice in tuned for trial in choice.choosing):
            loss = bowl(0.008 / trial.config["clip_norm"])
            leave_loss(trial.folder, loss(trial.config["optimizer"]["lr"]))
        tuned = choose(swept, tuned, Snapshot())
    return swept, tuned


def test_a_shared_value_is_chosen_at_one_optimizer_for_each_other_setting(tmp_path: Path) -> None:
    """Muon tries nothing; Lion sets the key itself and is tuned by itself."""
    swept, tuned = shared_store(tmp_path)
    muon, muon_2, adamw, adamw_2, lion, _ = tuned
    assert (muon.tried, muon_2.tried) == ([], [])
    assert [muon.leader, muon_2.leader] == [adamw.point, adamw_2.point]
    assert [*map(chosen, tuned[:4])] == [(0.008,), (0.004,), (0.008,), (0.004,)]
    assert {t.config["optimizer"]["lr"] for t in muon.arms} == {0.008}
    assert lion.leader is None
    assert chosen(lion) == pytest.approx((0.004,)), "two values beyond its factors"
    assert "(as of optimizer=adamw clip_norm=1)" in remarks(swept, tuned)[1]


def test_too_many_combinations_are_refused() -> None:
    factors = [*range(1, 41)]
    with pytest.raises(BadInput, match=r"sweep\.tune.*at most 1,000 combinations"):
        sweep(tune={"clip_norm": factors, KEY: factors})


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (DECAY, "weight_decay: must be a number other than 0"),
        ("optimizer.variance_decay", r"variance_decay=486\.4: must be less than 1"),
    ],
)
def test_multiples_that_no_trial_can_have_are_refused(key: str, says: str, tmp_path: Path) -> None:
    swept = sweep(tune={key: [0.5, 1, 2]}, base=[f"{DECAY}=0"])
    with pytest.raises(BadInput, match=says):
        check_reach(swept, points(swept, tmp_path))


def test_every_tried_value_is_in_the_file(tmp_path: Path) -> None:
    swept = sweep()
    choice, _ = run_to_the_end(swept, tmp_path, lambda lr: None if lr > 0.005 else lr)
    [line] = write(swept, [choice], tmp_path / "out")
    assert "tuned.csv, every value of optimizer.lr that was tried" in line
    with (tmp_path / "out" / "tuned.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["point"] == "optimizer=adamw"
    assert [row["loss"] for row in rows][-1] == ""
    assert [row[KEY] for row in rows if row["chosen"] == "True"] == [
        *map(str, chosen(choice) or ())
    ]
    assert len(rows) == len(choice.tried)


# A search asks Optuna again by what the store has, keeps pairs whole, and spends its budget.

RATE, LAMBDA = "optimizer.lr", "correction.coefficient"
ARMS_OF_SEARCH = {
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
LossOfSearch = Callable[[str, dict[str, Any]], float | None]
"""Final loss by arm and config; None diverges."""


def sweep_of_search(search: dict[str, Any] | None = None, **changes: Any) -> Sweep:
    plain = {"base": [f"{RATE}=0.004", "num_updates=40"], "grid": {"optimizer": ["adamw"]}}
    asked = {**SEARCH, **(search or {})}
    return check_sweep(
        {**plain, "arms": ARMS_OF_SEARCH, "seeds": [3, 5], "search": asked, **changes}
    )


def bowl_of_search(arm: str, config: dict[str, Any]) -> float:
    """Sync is best at a rate of 0.008, the other arm at 0.002 and a λ of 1.5."""
    lowest = 0.008 if arm == "sync" else 0.002
    coefficient = config["correction"].get("coefficient", 1.5)
    rate = math.log(config["optimizer"]["lr"] / lowest) ** 2
    return 2 + rate + (coefficient - 1.5) ** 2 + config["batch_size"] / 100


def asked(swept: Sweep, store: Path) -> Choice:
    [choice] = choose(swept, [*map(Choice, points(swept, store))], Snapshot())
    return choice


def run_to_the_end_of_search(
    swept: Sweep, store: Path, loss: LossOfSearch, most: int = 10_000
) -> Choice:
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
    choice = run_to_the_end_of_search(sweep_of_search(LONGER), tmp_path, bowl_of_search)
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
            of_sync = bowl_of_search("sync", {**config, "correction": {}})
            of_arm = bowl_of_search("delay_ef", {**config, "correction": correction})
            study.tell(trial, (of_sync + of_arm) / 2)
    assert values(choice) == expected


def test_every_setting_is_trained_by_every_arm_at_the_seeds_of_choice_alone(tmp_path: Path) -> None:
    choice = run_to_the_end_of_search(sweep_of_search(), tmp_path, bowl_of_search)
    for setting in choice.tried:
        seen = [(trial.arm, trial.config["seed"]) for trial in setting.trials]
        assert seen == [(arm, seed) for arm in ARMS_OF_SEARCH for seed in (1000, 1001)]
        for trial in setting.trials:
            assert trial.config["optimizer"]["lr"] == setting.values[RATE]
        assert "coefficient" not in setting.trials[0].config["correction"]
        assert setting.trials[-1].config["correction"]["coefficient"] == setting.values[LAMBDA]
    assert len(choice.choosing) == 9 * 2 * 2
    assert {trial.config["seed"] for trial in choice.arms} == {3, 5}
    assert len({trial.config["batch_size"] for trial in choice.choosing}) == 2
    assert len({trial.plan.tokens for trial in choice.choosing}) == 1, "whatever the batch size"


def test_each_arm_is_compared_at_the_best_setting_of_each(tmp_path: Path) -> None:
    choice = run_to_the_end_of_search(sweep_of_search(), tmp_path, bowl_of_search)
    for arm in ARMS_OF_SEARCH:
        losses = [
            next(bowl_of_search(arm, t.config) for t in setting.trials if t.arm == arm)
            for setting in choice.tried
        ]
        assert choice.best_of_arms[arm] is choice.tried[losses.index(min(losses))]
    assert [*choice.best_of_arms] == [*ARMS_OF_SEARCH]
    rates = [choice.best_of_arms[arm].values[RATE] for arm in ARMS_OF_SEARCH]
    assert rates[0] > rates[1]
    expected = [(rate, arm, seed) for rate in rates for arm in ARMS_OF_SEARCH for seed in (3, 5)]
    seen = [(t.config["optimizer"]["lr"], t.arm, t.config["seed"]) for t in choice.arms]
    assert seen == expected


@pytest.mark.parametrize("most", [3, 46])
def test_a_search_that_was_killed_goes_on_as_if_nothing_had_been(most: int, tmp_path: Path) -> None:
    whole = run_to_the_end_of_search(sweep_of_search(LONGER), tmp_path / "whole", bowl_of_search)
    before = run_to_the_end_of_search(
        sweep_of_search(LONGER), tmp_path / "killed", bowl_of_search, most
    )
    assert len(before.tried) % 4 == 0
    after = run_to_the_end_of_search(sweep_of_search(LONGER), tmp_path / "killed", bowl_of_search)
    assert values(after) == values(whole)
    assert {arm: s.values for arm, s in after.best_of_arms.items()} == {
        arm: s.values for arm, s in whole.best_of_arms.items()
    }
    trials = {trial.plan.trial_id for trial in whole.choosing}
    assert {path.name for path in (tmp_path / "killed" / "trials").iterdir()} == trials


def test_nothing_is_told_and_no_arm_runs_while_a_trial_is_open(tmp_path: Path) -> None:
    first = asked(sweep_of_search(), tmp_path)
    assert (len(first.tried), first.settled, first.best_of_arms) == (4, False, {})
    assert judge(sweep_of_search(), [first], Snapshot())[0].runnable == first.choosing
    for trial in first.choosing[:-1]:
        leave_loss(trial.folder, 1.0)
    assert values(asked(sweep_of_search(), tmp_path)) == values(first)


def test_other_seeds_of_the_sampler_propose_other_settings(tmp_path: Path) -> None:
    one, other = (values(asked(sweep_of_search({"sampler_seed": n}), tmp_path)) for n in (0, 1))
    assert not [setting for setting in one if setting in other]


def test_where_sync_diverged_nothing_is_chosen_and_a_late_arm_is_left_out(tmp_path: Path) -> None:
    def no_sync(arm: str, config: dict[str, Any]) -> float | None:
        return None if arm == "sync" and config["optimizer"]["lr"] > 0.002 else 1.0

    choice = run_to_the_end_of_search(sweep_of_search(), tmp_path / "some", no_sync)
    assert all(setting.values[RATE] <= 0.002 for setting in choice.best_of_arms.values())
    choice = run_to_the_end_of_search(
        sweep_of_search(), tmp_path / "none", lambda arm, config: None
    )
    assert (choice.best_of_arms, [*choice.arms]) == ({}, [])
    assert "optimizer=adamw is left out" in remarks(sweep_of_search(), [choice])[1]
    choice = run_to_the_end_of_search(
        sweep_of_search(), tmp_path / "late", lambda arm, _: 1 if arm == "sync" else None
    )
    assert [*choice.best_of_arms] == ["sync"]


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
        sweep_of_search(search, **changes)


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
    swept = sweep_of_search({"space": space})
    assert swept.search is not None
    with pytest.raises(BadInput, match=what):
        check_reach(swept, points(swept, tmp_path))


def test_without_optuna_one_line_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(BadInput, match=r"search=optuna: .*pip install 'pipegap\[search\]'"):
        asked(sweep_of_search(), tmp_path)


def test_every_tried_setting_is_in_the_file(tmp_path: Path) -> None:
    swept = sweep_of_search()
    choice = run_to_the_end_of_search(
        swept,
        tmp_path,
        lambda arm, c: None if c["optimizer"]["lr"] > 0.01 else bowl_of_search(arm, c),
    )
    [line] = write(swept, [choice], tmp_path / "out")
    assert "searched.csv, every setting that was tried" in line
    with (tmp_path / "out" / "searched.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row[RATE]) for row in rows] == [setting.values[RATE] for setting in choice.tried]
    assert all(bool(row["loss sync"]) == (float(row[RATE]) <= 0.01) for row in rows)
    of_sync = [row for row in rows if "sync" in row["best of"].split()]
    assert [float(row[RATE]) for row in of_sync] == [choice.best_of_arms["sync"].values[RATE]]


# Sweeps that choose settings, by their command: what they report, and a kill on the way.

SEARCH_WORDS = ("search=optuna", "search.budget=6", "search.at_once=2", "advice=null")
TUNED = "grid.optimizer=[{optimizer: adamw, optimizer.lr: 0.01}]"
SWEEPS = {
    "tuned": (1, ["sweep=optimizers", "seeds=[0]", TUNED]),
    "searched": (
        8,
        ["sweep=main", "seeds=[0,1]", "grid.optimizer=[{optimizer: adamw}]", *SEARCH_WORDS],
    ),
}
"""File of all that was tried → after how many trials the driver is killed, and its words."""


def command(folder: Path, kind: str) -> list[str]:
    words = small_sweep.overrides(folder, "num_updates=30", "checkpoint_every=5")
    words = [word for word in words if not word.startswith("optimizer.lr")]
    return [sys.executable, "-m", "pipegap", "sweep", "scale=micro", *SWEEPS[kind][1], *words]


def run(folder: Path, kind: str) -> str:
    return subprocess.run(command(folder, kind), check=True, capture_output=True, text=True).stdout


def table(folder: Path, name: str) -> list[dict[str, str]]:
    [path] = folder.glob(f"results/reports/*/{name}.csv")
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.parametrize("kind", SWEEPS)
def test_a_sweep_killed_while_it_chooses_chooses_the_same_and_trains_nothing_twice(
    kind: str, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(whole, kind)
    with subprocess.Popen(command(killed, kind), stdout=subprocess.DEVNULL) as driver:
        while len(list(killed.glob("results/trials/*/result.json"))) < SWEEPS[kind][0]:
            assert driver.poll() is None
            time.sleep(0.05)
        driver.kill()
    before = {path: path.stat().st_mtime_ns for path in killed.glob("results/trials/*/result.json")}
    said = run(killed, kind)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert table(killed, kind) == table(whole, kind)
    num_trials = len(list(killed.glob("results/trials/*")))
    if kind == "tuned":
        tried, compared = table(killed, kind), table(killed, "trials")
        [chosen] = [row["optimizer.lr"] for row in tried if row["chosen"] == "True"]
        assert [row["optimizer.lr"] for row in compared] == [chosen] * 3
        assert num_trials == len(tried) + 2
        assert f"optimizer.lr={float(chosen):g}" in said
    else:
        assert table(killed, "best") == table(whole, "best")
        assert f"{float(table(killed, 'best')[0]['gap']):+.4f} [" in said
    assert f"{num_trials} unique, {num_trials} done, 0 to do" in run(killed, kind)
