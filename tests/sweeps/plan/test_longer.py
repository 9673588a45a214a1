"""The longer runs of a sweep's question: by the speed-up over 1F1B, and never compared."""

from pathlib import Path

import pytest

from pipegap.sweeps.plan.sweep_plan import SweepPlan, plan_sweeps, speed_up
from pipegap.sweeps.request.command_line import parse_request


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
