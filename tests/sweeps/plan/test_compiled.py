"""A scale compiles every trial of a sweep, or the sweep says that it does not."""

from pathlib import Path

import pytest

from pipegap.sweeps.cluster.rounds import require_ready
from pipegap.sweeps.plan import sweep_record
from pipegap.sweeps.plan.sweep_plan import Round, SweepPlan, plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.files import STUDIES
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.files import FileStore
from pipegap.trainer.store.snapshot import Snapshot
from tests.support import small

SWEEP = """\
grid: {optimizer: [adamw, muon]}
arms: {sync: [pipeline=sync], delay: [pipeline=pipedream_2bw, correction=error_feedback]}
seeds: [0]
"""


def planned(folder: Path, *words: str, content: str = SWEEP) -> SweepPlan:
    (folder / "mine.yaml").write_text(content)
    given = [f"sweep={folder / 'mine.yaml'}", "scale=tiny", *small.overrides(folder), *words]
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
