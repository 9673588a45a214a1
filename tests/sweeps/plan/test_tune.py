"""The tuned value is the best of the sync arm's, whatever was killed, and is not hidden."""

import csv
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pipegap.sweeps.plan.choosing import (
    MAX_BEYOND,
    MAX_EXTENSIONS,
    Choice,
    Values,
    beyond,
    check_reach,
    choose,
    tune,
)
from pipegap.sweeps.plan.sweep_plan import judge
from pipegap.sweeps.plan.tried import remarks, write
from pipegap.sweeps.request.expand import points
from pipegap.sweeps.request.schema import Sweep, check_sweep
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.snapshot import Snapshot
from tests.support.records import leave_loss

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
    return next((tuple(s.values.values()) for s in choice.chosen.values()), None)


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
