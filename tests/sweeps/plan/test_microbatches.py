"""A sweep in one stage and process takes fewer microbatches where the plan says that they pay.

That a sweep keeps to what its first command decided is in test_preferred.py.
"""

from pathlib import Path

import pytest

from sweeps.plan import devices
from sweeps.plan.devices import known_devices
from sweeps.plan.pricing import summary
from sweeps.plan.round import Round
from sweeps.plan.sweep_plan import SweepPlan, plan_sweeps
from sweeps.request.command_line import parse_request
from trainer.store.files import FileStore

WORDS = ("sweep=main", "scale=135m", "seeds=[0]", "advice=null")
FEWER = "pipeline.num_microbatches=4"


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "H100")


def on(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(devices, "_gpu", lambda: known_devices()[name])
    devices._counted.cache_clear()  # a machine has one kind of GPU


def planned(folder: Path, *words: str) -> SweepPlan:
    [plan] = plan_sweeps(parse_request([*WORDS, f"results={folder}", *words]))
    return plan


def numbers(plan: SweepPlan) -> set[int]:
    return {trial.config["pipeline"]["num_microbatches"] for trial in plan.planned}


def ids(plan: SweepPlan) -> list[str]:
    return [trial.plan.trial_id for trial in plan.planned]


def test_the_plan_chooses_and_says_so(tmp_path: Path) -> None:
    request = parse_request([*WORDS, f"results={tmp_path}"])
    now = Round.first(request, FileStore(request.results))
    assert numbers(*now.sweeps) == {4}
    [line] = [s for s in summary(now).splitlines() if s.startswith("added ")]
    told = f"added     {FEWER} (0.83 of the time by the rates of H100, in "
    assert line.startswith(told)
    assert line.endswith(" GB)")


def test_an_id_is_that_of_its_values_alone(tmp_path: Path) -> None:
    """Those with a number that is given are what they are without a preference."""
    chosen, given = planned(tmp_path), planned(tmp_path, FEWER)
    assert ids(chosen) == ids(given)
    assert (given.added, given.not_added) == ((), "")
    eight = planned(tmp_path, "pipeline.num_microbatches=8")
    assert (eight.added, eight.not_added, numbers(eight)) == ((), "", {8})
    assert not {*ids(eight)} & {*ids(chosen)}


def test_a_number_that_the_grid_or_an_arm_sets_is_kept(tmp_path: Path) -> None:
    grid = planned(tmp_path, "grid.pipeline.num_microbatches=[2,8]")
    assert (numbers(grid), grid.added, grid.not_added) == ({2, 8}, (), "")
    stages = planned(tmp_path, "sweep=stages")
    assert (numbers(stages), stages.added, stages.not_added) == ({1, 8}, (), "")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["pipeline.num_stages=2"], "pipeline=sync of 2 stages: must be one stage in one process"),
        (["runner=pipelined", "num_replicas=2"], "pipeline=sync of 1 stages: must be one stage"),
        (["grid.pipeline.num_stages=[1,8]"], "2BW needs at least num_stages - 1 = 7"),
        (["model=moe_2b"], "model=qwen3_moe: must be without experts"),
        (["gpus_per_trial=0.25"], "must fit 85 GB of H100: "),
        (["batch_size=1408"], "must take at most 0.95 of the time: 1.00 by the rates of H100"),
        (["search=optuna", "search.space.batch_size=[88,176]"], "batch_size=chosen by results: "),
    ],
)
def test_trials_for_which_it_is_not_keep_theirs(tmp_path: Path, words: list[str], why: str) -> None:
    plan = planned(tmp_path, *words)
    assert (numbers(plan), plan.added) == ({8}, ())
    assert plan.not_added.startswith(f"{FEWER} is not added: ")
    assert why in plan.not_added
    assert "\n" not in plan.not_added


def test_where_the_gpu_is_the_limit_nothing_is_gained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, "A100")
    plan = planned(tmp_path)
    assert numbers(plan) == {8}
    assert "must take at most 0.95 of the time: 1.00 by the rates of A100" in plan.not_added
