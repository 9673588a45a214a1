"""Early stop leaves whole points out, by their sync arm alone, and any driver decides the same."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.cluster.rounds import require_ready
from pipegap.sweeps.plan import sweep_record
from pipegap.sweeps.plan.choosing import tune
from pipegap.sweeps.plan.sweep_plan import (
    JudgedPoint,
    Round,
    SweepPlan,
    SweepRequest,
    judge,
    plan_sweeps,
    speed_up,
)
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import points
from pipegap.sweeps.request.schema import STUDIES, Sweep, check_sweep
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.files import FileStore
from pipegap.trainer.store.snapshot import Snapshot
from pipegap.trainer.trial import run_trial
from tests.support import small_sweep
from tests.support.trials import leave_loss

LR = "optimizer.lr"


def remarks(swept: Sweep, judged: list[JudgedPoint]) -> list[str]:
    """What a plan says of early stopping, after what it says of tuning."""
    lines = SweepPlan(
        "early-tiny", swept, judged, SweepRequest("early", "tiny", "", frozenset(), ())
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
    assert [[s.values for s in point.choice.best_of_arms.values()] for point in judged] == [
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
    given = [word for word in small_sweep.overrides(tmp_path) if not word.startswith(LR)]
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


# The longer runs of a sweep's question: by the speed-up over 1F1B, and never compared.


def plan(tmp_path: Path, *words: str) -> SweepPlan:
    [made] = plan_sweeps(parse_request(["sweep=main", f"results={tmp_path}", *words]))
    return made


def lengths(made: SweepPlan) -> set[tuple[str, str, int]]:
    """Optimizer, arm and updates of the trials that are not compared."""
    return {
        (trial.config["choices"]["optimizer"], trial.arm, trial.plan.num_updates)
        for trial in made.planned
        if trial.plan.trial_id not in made.compared
    }


def test_they_are_as_much_longer_as_the_slowest_rival_is_slower(tmp_path: Path) -> None:
    """1F1B: (m + p − 1) / m, which is 11 / 8 at four stages and eight microbatches."""
    assert speed_up(4, 8) == pytest.approx(11 / 8)
    made = plan(tmp_path)
    assert lengths(made) == {("adamw", "delay_ef", 550), ("muon", "delay_ef", 550)}
    assert len(made.planned) == len(made.runnable) == 24
    assert len(made.compared) == 18
    names = {trial.name for trial in made.planned}
    assert "muon num_updates=550 delay_ef seed 2" in names


def test_another_question_makes_others(tmp_path: Path) -> None:
    words = ("advice.stages=8", "advice.microbatches=16", "advice.arms=[delay]", "seeds=[0]")
    assert lengths(plan(tmp_path, *words)) == {
        ("adamw", "delay", 575),  # 400 times 23 / 16
        ("muon", "delay", 575),
    }
    for none in ("advice=null", "advice.arms=[]"):
        assert lengths(plan(tmp_path, none)) == set()
    assert lengths(plan(tmp_path, "advice.stages=1")) == set()  # no pipeline, no bubble


def test_a_length_in_tokens_becomes_one_in_updates(tmp_path: Path) -> None:
    words = ("num_updates=null", "tokens_per_parameter=2", "grid.optimizer=[muon]", "seeds=[0]")
    made = plan(tmp_path, *words)
    [sync] = [trial for trial in made.planned if trial.arm == "sync"]
    [(_, _, longer)] = lengths(made)
    assert longer == -(-sync.plan.num_updates * 11 // 8)


# A scale compiles every trial of a sweep, or the sweep says that it does not.

SWEEP = """\
grid: {optimizer: [adamw, muon]}
arms: {sync: [pipeline=sync], delay: [pipeline=pipedream_2bw, correction=error_feedback]}
seeds: [0]
"""


def planned(folder: Path, *words: str, content: str = SWEEP) -> SweepPlan:
    (folder / "mine.yaml").write_text(content)
    given = [f"sweep={folder / 'mine.yaml'}", "scale=tiny", *small_sweep.overrides(folder), *words]
    [plan] = plan_sweeps(parse_request(given))
    return plan


def ways(plan: SweepPlan) -> set[bool | str]:
    return {trial.config["compile"] for trial in plan.planned}


def test_a_sweep_s_base_and_the_command_line_count_more_than_the_scale(tmp_path: Path) -> None:
    own = "base: [compile=false]\n" + SWEEP
    assert ways(planned(tmp_path)) == {"update"}
    assert ways(planned(tmp_path, "compile=false")) == {False}
    assert ways(planned(tmp_path, content=own)) == {False}
    assert ways(planned(tmp_path, "compile=update", content=own)) == {"update"}


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("runner=pipelined", "runner=pipelined: must be emulated"),
        ("diagnostics=4", "diagnostics=4: must be null"),
        ("grid.optimizer=[adamw,signum]", "optimizer=signum: has no graph"),
        ("grid.optimizer.cautious_decay=[true]", "optimizer=muon: has no graph"),
        (
            "search=optuna search.space={optimizer.cautious_decay:[false,true]}",
            "optimizer=muon: has no graph",
        ),
        ("model=tiny_moe", "model=qwen3_moe: must have no experts"),
    ],
)
def test_one_trial_that_cannot_be_compiled_refuses_the_sweep(
    tmp_path: Path, word: str, why: str
) -> None:
    content = SWEEP.replace("[adamw, muon]", "[muon]")
    with pytest.raises(BadInput) as refused:
        planned(tmp_path, *word.split(), content=content)
    assert str(refused.value).startswith(why)
    assert str(refused.value).endswith("with compile=update: compile=false does without")


def test_a_machine_without_a_compiler_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = planned(tmp_path).planned
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    lacks = r"^compile=update: needs a C\+\+ compiler, .*; compile=false does without$"
    with pytest.raises(BadInput, match=lacks):
        require_ready(FileStore(tmp_path / "results"), trials)


@pytest.mark.parametrize(
    ("sweep", "way"),
    [
        ("main", "update"),
        ("families", False),
        ("nesterov", False),
        (str(STUDIES / "noise" / "sweep.yaml"), False),
    ],
)
def test_published_sweeps_are_as_they_were(tmp_path: Path, sweep: str, way: bool | str) -> None:
    words = [f"sweep={sweep}", "scale=tiny", "seeds=[0]", f"results={tmp_path}"]
    [plan] = plan_sweeps(parse_request(words))
    assert ways(plan) == {way}


def test_the_record_says_that_its_trials_are_compiled(tmp_path: Path) -> None:
    """By a word that no command had: a report compares no trials that were compiled otherwise."""
    for words, added in (
        ((), ["compile=update"]),
        (("compile=update",), []),
        (("compile=false",), []),
    ):
        plan = planned(tmp_path, *words)
        request = parse_request([f"sweep={tmp_path / 'mine.yaml'}", "scale=tiny", *words])
        now = Round(request, FileStore(tmp_path), Snapshot(), [plan])
        record = sweep_record.record(now, plan)
        assert record["added"] == added
        assert record["words"] == [*request.words, *added]
