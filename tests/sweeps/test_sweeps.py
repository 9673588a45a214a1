"""A sweep asks for each trial once, runs what is missing and survives a kill."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis.table.arms import arm as arm_of
from sweeps.__main__ import main
from sweeps.plan.sweep_plan import all_planned, plan_sweeps
from sweeps.request.command_line import parse_request
from sweeps.request.expand import Trial, points, unique
from sweeps.request.files import known
from sweeps.request.schema import Sweep, check_sweep
from tests.support import small
from trainer.base.errors import BadInput
from trainer.config.compose import Composer

ARMS = {
    "sync": ["pipeline=sync"],
    "delay": ["pipeline=pipedream_2bw"],
    "delay_ef": ["pipeline=pipedream_2bw", "correction=error_feedback"],
}


def content(**changes: Any) -> dict[str, Any]:
    plain = {"base": [], "grid": {}, "arms": ARMS, "seeds": [0], "verdict": "none"}
    return {**plain, **changes}


def asked(sweep: Sweep, results: Path) -> list[Trial]:
    return [trial for point in points(sweep, results) for trial in point.trials(sweep.seeds)]


def only(*words: str) -> Sweep:
    [sweep] = parse_request(words).sweeps.values()
    return sweep


def expand(sweep: Sweep, results: Path) -> list[Trial]:
    return unique(asked(sweep, results))


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
    found = {(t.config["optimizer"]["_target_"][-4:], t.config["optimizer"]["lr"]) for t in trials}
    assert found == {("muon", 0.5), ("damw", 0.002)}


def test_arms_of_a_point_differ_in_pipeline_and_correction_only(tmp_path: Path) -> None:
    one, *others = (t.config for t in expand(check_sweep(content()), tmp_path))
    for other in others:
        arms = {"pipeline", "correction"}
        assert {key for key in one if one[key] != other[key]} <= arms | {"choices"}
        assert {key for key, of in one["choices"].items() if of != other["choices"][key]} <= arms


def test_a_sweep_of_batch_sizes_holds_the_tokens(tmp_path: Path) -> None:
    trials = expand(check_sweep(content(grid={"batch_size": [8, 16, 32]})), tmp_path)
    assert {trial.plan.tokens for trial in trials} == {400 * 16 * 128}


BAD = {
    "sweep=nowhere": "sweep=nowhere",
    "scale=nowhere": "scale=nowhere",
    "seeds=[0,0]": "seeds",
    "seeds=[-1]": "seeds",
    "seeds=[0.5]": "seeds",
    "seeds=[]": "seeds",
    "seeds=[": "seeds",
    "grid.optimizer=[]": "grid.optimizer",
    "grid.optimizer=[adamw,adamw]": "grid.optimizer",
    "grid.optimizer=[nowhere]": "nowhere",
    "grid.optimizer.lr=[-1]": "optimizer.lr=-1",
    "grid.nonsense=[1]": "nonsense",
    "correction.coefficient=-2": "coefficient",
    "dry_run=maybe": "dry_run=maybe",
    "results=/proc/store": "results=/proc/store",
    "data.path=nowhere": "data.path",
    "device=cuda": "device=cuda",
    "nothing": "nothing",
    "optimizer=sgd": "optimizer=sgd",
    "tune.optimizer.lr=[1]": "tune.optimizer.lr",
    "tune.optimizer.lr=[2,1]": "tune.optimizer.lr",
    "tune.optimizer.lr=[0,1]": "tune.optimizer.lr",
    "tune.optimizer=[1,2]": "sweep.tune=optimizer",
    "tune.optimizer.nowhere=[1,2]": "optimizer.nowhere",
    "tune.optimizer.momentum=[1,2]": "optimizer.momentum",
}


@pytest.mark.parametrize("word", BAD)
def test_bad_input_is_found_before_any_trial_starts(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"results={tmp_path}", f"data.path={small.corpus(tmp_path)}", "sweep=main", word]
    given = {part.split("=")[0]: part for part in words}
    assert main([*given.values()]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    assert BAD[word] in captured.err
    assert not (tmp_path / "trials").exists() or not list((tmp_path / "trials").iterdir())


def test_everything_that_is_missing_is_named_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody fetches a GPU to learn that there is no data."""
    words = [f"results={tmp_path}", "sweep=main", "device=cuda", f"data.path={tmp_path / 'none'}"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "device=cuda: no such GPU" in error
    assert f"also data.path={tmp_path / 'none'}: holds no manifest.json" in error


def test_a_trial_of_several_sweeps_has_the_tags_of_all(tmp_path: Path) -> None:
    request = parse_request(["sweep=main,horizon", "seeds=[0]", f"results={tmp_path}"])
    found = all_planned(plan_sweeps(request))
    by_sweeps = {trial.sweeps for trial in found}
    assert by_sweeps == {("main-tiny",), ("horizon-tiny",), ("main-tiny", "horizon-tiny")}
    [shared] = [t for t in found if len(t.sweeps) == 2 and t.name == "muon delay seed 0"]
    assert shared.config["num_updates"] == 400
    names = {trial.name for trial in found if trial.sweeps == ("horizon-tiny",)}
    assert "adamw num_updates=100 delay_ef seed 0" in names
    assert (request.label, request.title) == ("main-tiny_horizon-tiny", "main-tiny, horizon-tiny")


def test_a_sweep_of_ones_own_needs_no_verdict_and_its_name_may_be_anything(tmp_path: Path) -> None:
    other = tmp_path / "mine & yours.yaml"
    other.write_text("grid: {optimizer: [sgd]}\narms: {sync: [pipeline=sync]}\nseeds: [0]\n")
    request = parse_request([f"sweep={other}"])
    assert [*request.sweeps] == ["mine-yours-tiny"]
    assert request.sweeps["mine-yours-tiny"].verdict is None


def test_a_sweep_without_a_sync_arm_is_refused() -> None:
    with pytest.raises(BadInput, match="sync"):
        check_sweep(content(arms={"delay": ARMS["delay"]}))


@pytest.mark.parametrize(
    "scale",
    [
        "tiny",
        *(pytest.param(name, marks=pytest.mark.slow) for name in known("scale") if name != "tiny"),
    ],
)
def test_every_sweep_can_be_planned_at_every_scale_anywhere(
    scale: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All at once: what they share is composed once. An arm has the name that a report gives it."""
    words = ["sweep=all", f"scale={scale}", f"results={tmp_path / 'store'}"]
    assert main([*words, "dry_run=true"]) == 0
    plan = capsys.readouterr().out
    assert ", 0 done" in plan
    rows = [line.split()[0] for line in plan.splitlines()]
    labels = [f"{name}-{scale}" for name in known("sweep")]
    assert rows[: len(labels) + 3] == ["trials", "sweep", *labels, "together"]
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def composer() -> Composer:
    """One for all sweeps, which share most of what they choose."""
    return Composer()


@pytest.mark.parametrize("name", known("sweep"))
def test_an_arm_has_the_name_that_the_report_gives_it(
    name: str, composer: Composer, tmp_path: Path
) -> None:
    for point in points(only(f"sweep={name}"), tmp_path, composer):
        assert {arm: arm_of(config, {}) for arm, config in point.configs.items()} == {
            arm: arm for arm in point.configs
        }


def test_the_overrides_of_a_scale_come_after_those_of_conf_and_before_the_command_lines() -> None:
    tiny = only("sweep=optimizers", "num_updates=7").base
    assert [word for word in tiny if word.startswith("num_updates")] == [
        f"num_updates={number}" for number in (400, 250, 7)
    ]
    large = only("sweep=optimizers", "scale=135m").base
    assert "num_updates=250" not in large
    with pytest.raises(BadInput, match="nowhere"):
        check_sweep(content(scales={"nowhere": []}))


def test_a_scale_changes_what_a_command_line_can_which_wins(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "grid: {size: [{model.hidden_size: 48}], optimizer.lr: [1, 2]}\n"
        "scales: {tiny: ['seeds=[7]', 'grid.size=[{batch_size: 8}]', 'tune.clip_norm=[1, 2]']}\n"
        "arms: {sync: [pipeline=sync]}\nseeds: [0]\nverdict: none\n"
    )
    tiny = only(f"sweep={path}", "grid.optimizer.lr=[3]")
    assert tiny.grid == {"size": [{"batch_size": 8}], "optimizer.lr": [3]}
    assert (tiny.seeds, tiny.tune) == ([7], {"clip_norm": [1, 2]})
    micro = only(f"sweep={path}", "scale=micro")
    assert micro.grid == {"size": [{"model.hidden_size": 48}], "optimizer.lr": [1, 2]}
    assert (micro.seeds, micro.tune) == ([0], {})
    assert only(f"sweep={path}", "seeds=[1,2]").seeds == [1, 2]


def test_a_list_of_the_grid_is_replaced_mappings_included(tmp_path: Path) -> None:
    values = "[sgd, {optimizer: muon, optimizer.lr: 0.5}]"
    sweep = only("sweep=optimizers", f"grid.optimizer={values}")
    found = [point.configs["sync"]["optimizer"]["lr"] for point in points(sweep, tmp_path)]
    assert found == [0.004, 0.5]


def command(folder: Path, *more: str) -> list[str]:
    words = small.overrides(folder, "num_updates=60", "checkpoint_every=5", *more)
    words = ["sweep=main", "scale=micro", "seeds=[0]", "grid.optimizer=[adamw]", *words]
    return [sys.executable, "-m", "sweeps", *words]


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, *more), check=False, capture_output=True, text=True)


def losses(folder: Path) -> dict[str, float]:
    results = (json.loads(p.read_text()) for p in folder.glob("results/trials/*/result.json"))
    return {result["trial_id"]: result["final_val_loss"] for result in results}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    done = run(folder)
    assert done.returncode == 0, done.stderr
    assert "delay_ef" in done.stdout
    assert "adamw, 4 stages, 8 microbatches: not enough data" in done.stdout  # of one seed
    assert "to settle it: python -m sweeps sweep=main scale=micro" in done.stdout
    return folder


def test_a_sweep_runs_reports_and_is_done(whole: Path) -> None:
    assert len(losses(whole)) == 4
    record = json.loads((whole / "results/sweeps/main-micro.json").read_text())
    assert set(record["trials"]) == set(losses(whole))
    assert set(record["compared"]) < set(losses(whole))
    [longer] = set(losses(whole)) - set(record["compared"])
    config = json.loads((whole / "results/trials" / longer / "config.json").read_text())
    assert (config["num_updates"], config["seed"]) == (64, 0)  # 1.0625 times 60, and rounded up
    before = {p: p.stat().st_mtime_ns for p in whole.glob("results/trials/*/*")}
    again = run(whole)
    assert again.returncode == 0
    assert "4 done, 0 to do" in again.stdout
    assert {p: p.stat().st_mtime_ns for p in whole.glob("results/trials/*/*")} == before


@pytest.mark.slow
def test_a_failing_trial_is_recorded_and_stops_no_other(tmp_path: Path) -> None:
    """The delayed arms cannot write their rows; sync can."""
    dry = run(tmp_path, "dry_run=true")
    assert dry.returncode == 0, dry.stderr
    sweep = check_sweep(
        content(base=small.overrides(tmp_path, "num_updates=60", "checkpoint_every=5"))
    )
    [broken] = [t for t in expand(sweep, tmp_path / "results") if t.arm == "delay"]
    (broken.folder / "metrics.jsonl").mkdir(parents=True)
    done = run(tmp_path, "eval_every=4")
    assert done.returncode == 1
    assert "failed: adamw delay seed 0" in done.stdout
    result = json.loads((broken.folder / "result.json").read_text())
    assert result["status"] == "failed"
    assert "metrics.jsonl" in result["error"]
    assert sum(loss is not None for loss in losses(tmp_path).values()) == 3
