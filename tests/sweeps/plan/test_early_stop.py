"""Early stop leaves whole points out, by their sync arm alone, and any driver decides the same."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.plan.labels import Asked
from pipegap.sweeps.plan.sweep_plan import JudgedPoint, SweepPlan, judge, plan_sweeps
from pipegap.sweeps.plan.tuning import tune
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import points
from pipegap.sweeps.request.schema import Sweep, check_sweep
from pipegap.trainer.store.snapshot import Snapshot
from pipegap.trainer.trial import run_trial
from tests.support import small
from tests.support.records import leave_loss

LR = "optimizer.lr"


def remarks(swept: Sweep, judged: list[JudgedPoint]) -> list[str]:
    """What a plan says of early stopping, after what it says of tuning."""
    lines = SweepPlan(
        "early-tiny", swept, judged, Asked("early", "tiny", "", frozenset(), ())
    ).remarks
    return lines[next((i for i, line in enumerate(lines) if line.startswith("early stop")), 0) :]


Loss = Callable[[dict[str, Any]], float | None]


def sweep(**changes: Any) -> Sweep:
    plain = {
        "base": [],
        "grid": {"optimizer": ["adamw", "muon"], LR: [0.1, 0.2, 0.4]},
        "arms": {"delay": ["pipeline=pipedream_2bw"], "sync": ["pipeline=sync"]},
        "seeds": [3, 5],
        "early_stop": {"margin": 0.5},
        "verdict": "none",
    }
    return check_sweep({**plain, **changes})


def look(swept: Sweep, store: Path) -> list[JudgedPoint]:
    seen = Snapshot()
    return judge(swept, [tune(swept, point, seen) for point in points(swept, store)], seen)


def run_to_the_end(swept: Sweep, store: Path, loss: Loss) -> tuple[list[JudgedPoint], list[str]]:
    """The judged points, and the ids of the trials that ran, in rounds of all that can run."""
    order: list[str] = []
    while True:
        judged = look(swept, store)
        known = {t.plan.trial_id: t for point in judged for t in point.runnable}
        todo = [trial for key, trial in known.items() if key not in order]
        if not todo:
            return judged, order
        for trial in todo:
            leave_loss(trial.folder, loss(trial.config))
            order.append(trial.plan.trial_id)


def by_lr(**losses: float | None) -> Loss:
    return lambda config: losses[f"at_{config['optimizer']['lr']}".replace(".", "_")]


GOOD = by_lr(at_0_1=2.0, at_0_2=2.6, at_0_4=None)


def test_first_the_sync_arm_runs_at_the_first_seed_of_every_point(tmp_path: Path) -> None:
    judged = look(sweep(), tmp_path)
    assert [[(t.arm, t.config["seed"]) for t in point.runnable] for point in judged] == [
        [("sync", 3)]
    ] * 6
    assert not any(point.settled for point in judged)
    assert sum(len(point.planned) for point in judged) == 6 * 4


def test_a_point_far_above_the_best_or_diverged_is_run_in_no_arm(tmp_path: Path) -> None:
    judged, order = run_to_the_end(sweep(), tmp_path, GOOD)
    assert [point.stopped is None for point in judged] == [True, False, False] * 2
    assert len(order) == 2 * (4 + 1 + 1)
    assert [len(point.arms) for point in judged] == [4, 0, 0] * 2
    lines = remarks(sweep(), judged)
    assert "more than 0.5 nats" in lines[0]
    assert "seed 3" in lines[0]
    assert lines[1] == (
        "optimizer=adamw optimizer.lr=0.2 is left out: "
        "its sync arm ended at 2.6000, the best at 2.0000"
    )
    assert lines[2] == "optimizer=adamw optimizer.lr=0.4 is left out: its sync arm diverged"
    assert len(lines) == 1 + 4


def test_a_loss_at_the_margin_goes_on(tmp_path: Path) -> None:
    judged, _ = run_to_the_end(sweep(), tmp_path, by_lr(at_0_1=2.0, at_0_2=2.5, at_0_4=2.25))
    assert all(point.stopped is None for point in judged)


def test_only_losses_of_one_optimizer_and_model_are_compared(tmp_path: Path) -> None:
    """Every point of Muon is far worse than those of AdamW; its own best goes on."""

    def loss(config: dict[str, Any]) -> float:
        worse = 5.0 if config["optimizer"]["_target_"].endswith("muon") else 0.0
        return worse + config["model"]["num_layers"] + config["optimizer"]["lr"]

    grid = {"optimizer": ["adamw", "muon"], "model.num_layers": [2, 4], LR: [0.1, 0.9]}
    judged, _ = run_to_the_end(sweep(grid=grid), tmp_path, loss)
    assert [point.stopped is None for point in judged] == [True, False] * 4


def test_nothing_is_decided_while_a_sync_arm_has_to_run(tmp_path: Path) -> None:
    """The points of the other optimizer go on."""
    *first, last = [point.first[0] for point in look(sweep(), tmp_path)]
    for trial in first:
        leave_loss(trial.folder, GOOD(trial.config))
    (last.folder).mkdir(parents=True)
    (last.folder / "result.json").write_text(json.dumps({"status": "failed"}))
    judged = look(sweep(), tmp_path)
    assert [point.settled for point in judged] == [True] * 3 + [False] * 3
    assert [bool(point.stopped) for point in judged] == [False, True, True] + [False] * 3


def test_any_order_of_results_decides_the_same(tmp_path: Path) -> None:
    """What a killed sweep left, whatever it is, changes nothing: not even arms that ran."""
    expected, _ = run_to_the_end(sweep(), tmp_path / "whole", GOOD)
    store = tmp_path / "killed"
    for point in points(sweep(), store)[::2]:
        leave_loss(point.trials([5])[0].folder, 9.0)
        leave_loss(point.trials([3])[1].folder, GOOD(point.trials([3])[1].config))
    judged, _ = run_to_the_end(sweep(), store, GOOD)
    assert [point.stopped for point in judged] == [point.stopped for point in expected]


def test_a_tuned_point_is_judged_at_its_chosen_value(tmp_path: Path) -> None:
    grid = {"optimizer.momentum": [0.5, 0.9, 0.99]}

    def loss(config: dict[str, Any]) -> float | None:
        lr, momentum = config["optimizer"]["lr"], config["optimizer"]["momentum"]
        return None if momentum > 0.95 else 2 + abs(lr - 0.2) + (momentum > 0.5)

    swept = sweep(base=[f"{LR}=0.1"], grid=grid, tune={LR: [1, 2, 4]})
    judged, _ = run_to_the_end(swept, tmp_path, loss)
    assert [[s.values for s in point.choice.chosen.values()] for point in judged] == [
        [{LR: 0.2}],
        [{LR: 0.2}],
        [],
    ]
    assert [len(point.arms) for point in judged] == [4, 0, 0]
    assert "ended at 3.0000, the best at 2.0000" in remarks(swept, judged)[1]


def test_without_it_all_points_run(tmp_path: Path) -> None:
    judged = look(sweep(early_stop=None), tmp_path)
    assert all(point.settled and len(point.runnable) == 4 for point in judged)
    assert remarks(sweep(early_stop=None), judged) == []


@pytest.mark.parametrize("margin", [0, float("nan"), "wide"])
def test_a_bad_margin_is_refused(margin: object) -> None:
    with pytest.raises(ValueError, match="early_stop"):
        sweep(early_stop={"margin": margin})


@pytest.mark.usefixtures("without_figures")
def test_a_sweep_that_stopped_early_reports_why_and_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its trials are run one by one, without a cluster; the command finds nothing left to run."""
    path = tmp_path / "early.yaml"
    path.write_text(
        "grid: {optimizer.lr: [0.01, 1.0e-9]}\n"
        "arms: {sync: [pipeline=sync], delay: [pipeline=pipedream_2bw]}\n"
        "seeds: [0]\nearly_stop: {margin: 0.1}\nverdict: none\n"
    )
    given = [word for word in small.overrides(tmp_path) if not word.startswith(LR)]
    words = [f"sweep={path}", "scale=micro", *given]
    [plan] = plan_sweeps(parse_request(words))
    assert len(plan.planned) == 4
    while todo := [trial for trial in plan.runnable if not trial.folder.exists()]:
        for trial in todo:
            run_trial(trial.config)
        plan = plan.refreshed(Snapshot())
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "3 asked, 3 unique, 3 done, 0 to do" in printed
    assert "optimizer.lr=1e-09 is left out: its sync arm ended at" in printed
    notes = (tmp_path / "results" / "reports" / "early-micro" / "gaps.md").read_text()
    assert "optimizer.lr=1e-09 is left out" in notes
