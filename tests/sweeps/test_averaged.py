"""The last weights that a trial keeps, and the loss of their mean."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.plan.sweep_plan import all_planned, plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.averaged import mean_of, validation_loss, whole_sets
from pipegap.trainer.base.build import build
from pipegap.trainer.folder.checkpoint import keep_weights
from pipegap.trainer.parts import open_data
from pipegap.trainer.store.snapshot import Snapshot
from pipegap.trainer.trial import run_trial
from tests.support import small
from tests.support.records import leave_finished
from tests.support.whole import whole

WORDS = ("lr_schedule=constant", "save_final=true", "checkpoint_every=2", "eval_batch_size=3")
RUNNERS = {
    "emulated": (),
    "pipelined": ("pipeline=pipedream_2bw", "runner=pipelined", "pipeline.num_stages=2"),
}


@pytest.mark.parametrize("runner", RUNNERS)
def test_it_is_that_of_weights_averaged_by_hand(tmp_path: Path, runner: str) -> None:
    """Those after 4 updates are the final ones of a trial of 4, and the last one's those of 7."""
    stages = ("pipeline.num_microbatches=2", "model.num_layers=2") if RUNNERS[runner] else ()
    words = (*WORDS, *RUNNERS[runner], *stages)
    folders = {n: tmp_path / str(n) for n in (4, 6, 7)}
    for number, folder in folders.items():
        more = (f"num_updates={number}", "save_last=3", f"out={folder}")
        config = small.config(tmp_path, *words, *more)
        result = run_trial(config)
    sets = [load_file(folder / "final.safetensors") for folder in folders.values()]
    assert whole_sets(folders[7]) == [4, 6, 7]
    mean = mean_of(folders[7], [4, 6, 7])
    assert mean.keys() == sets[0].keys()
    for name, weight in mean.items():
        torch.testing.assert_close(weight, sum(of[name] for of in sets) / 3, rtol=0, atol=1e-7)
    last = mean_of(folders[7], [7])
    assert validation_loss(config, last) == pytest.approx(result["final_val_loss"], rel=1e-6)
    module = whole(build(config["model"]))
    for name, weight in module.named_parameters():
        weight.data.copy_(sum(of[name] for of in sets) / 3)
    _, validation = open_data(config)
    windows = torch.cat([*validation.batches(1)])
    with torch.no_grad():
        expected = cross_entropy(module(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
    assert validation_loss(config, mean) == pytest.approx(float(expected), rel=1e-6)
    assert abs(float(expected) - result["final_val_loss"]) > 1e-4


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[list[Trial], list[str]]:
    """Two pairs of trials that kept their weights after 3, 6 and 7 updates, and the sweep's words.

    Nothing was trained: the weights are drawn anew for each set.
    """
    sweep, generator = tmp_path / "short.yaml", torch.Generator().manual_seed(0)
    base = ", ".join(small.overrides(tmp_path, "save_last=3"))
    arms = "{sync: [pipeline=sync], delay: [pipeline=pipedream_2bw]}"
    sweep.write_text(f"base: [{base}]\ngrid: {{optimizer: [adamw]}}\narms: {arms}\nseeds: [0, 1]\n")
    words = [f"sweep={sweep}", "num_updates=7", f"results={tmp_path}"]
    trials = all_planned(plan_sweeps(parse_request(words), Snapshot()))
    for trial in trials:
        leave_finished(trial.folder, trial.config, trial_id=trial.trial_id)
        module = whole(build(trial.config["model"]))
        for number in (3, 6, 7):
            sets = {
                name: torch.randn(weight.shape, generator=generator) / 10
                for name, weight in module.named_parameters()
            }
            keep_weights(trial.folder, number, sets, 3)
    return trials, words


def path_of(trial: Trial, update: int) -> Path:
    return trial.folder / "weights" / f"{update:09d}.safetensors"


def expected(trial: Trial, updates: list[int]) -> str:
    loss = validation_loss(trial.config, mean_of(trial.folder, updates))
    return f"{trial.name}: 1.00000; {loss:.5f}, the mean of updates {updates[0]}, {updates[1]}"


def test_the_arms_of_a_pair_average_the_same_updates(
    pairs: tuple[list[Trial], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that both kept, whole; the other pair has its own."""
    trials, words = pairs
    path_of(trials[0], 6).unlink()
    path_of(trials[-1], 7).write_bytes(path_of(trials[-1], 7).read_bytes()[:-1])
    (trials[0].folder / "weights" / "notes.safetensors").touch()
    assert main(["evaluate", "average=2", *words]) == 0
    said = capsys.readouterr()
    [line] = said.err.splitlines()
    assert line.startswith(f"warning: {path_of(trials[-1], 7)} is left out: it is not whole (")
    seeds = {seed: [t for t in trials if t.config["seed"] == seed] for seed in (0, 1)}
    updates = {trials[0].config["seed"]: [3, 7], trials[-1].config["seed"]: [3, 6]}
    assert updates.keys() == seeds.keys()
    lines = [expected(trial, updates[seed]) for seed in seeds for trial in seeds[seed]]
    assert sorted(said.out.splitlines()) == sorted(lines)
    assert main(["evaluate", "average=2", *words, "dry_run=true"]) == 0
    untried = [f"{line.split('; ')[0]}; {line.split(', ', 1)[1]}" for line in lines]
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(untried)


def test_what_cannot_be_averaged_is_a_line_and_stops_no_other(
    pairs: tuple[list[Trial], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    trials, words = pairs
    one, two = ([t for t in trials if t.config["seed"] == seed] for seed in (0, 1))
    path_of(one[0], 3).unlink()
    path_of(one[1], 6).unlink()
    assert main(["evaluate", "average=2", *words]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines() == [expected(trial, [6, 7]) for trial in two]
    assert said.err == (
        f"pipegap evaluate: average=2: must be at most 1, the sets of weights which {one[0].arm} "
        f"and {one[1].arm} of adamw seed 0 kept (after updates 7)\n"
    )
    keep_weights(one[0].folder, 6, {"other": torch.zeros(2)}, 3)
    keep_weights(one[1].folder, 6, {"other": torch.zeros(2)}, 3)
    assert main(["evaluate", "average=1", *words, "seeds=[0]"]) == 0
    assert main(["evaluate", "average=2", *words, "seeds=[0]"]) == 2
    assert "has other weights than the set before it (" in capsys.readouterr().err
    shutil.rmtree(one[0].folder / "weights")
    assert main(["evaluate", "average=1", *words, "seeds=[0]"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "1 of 2 completed trials kept weights (save_last=)"
    assert [line.partition(":")[0] for line in lines] == [one[1].name]
    shutil.rmtree(one[1].folder / "weights")
    assert main(["evaluate", "average=3", *words, "seeds=[0]"]) == 2
    assert "none: save_last=3 keeps them, of a run into another" in capsys.readouterr().err
    assert main(["evaluate", "average=3", *words, "seeds=[2]"]) == 2
    assert "must have a completed trial: " in capsys.readouterr().err
    assert main(["evaluate", "average=2", "limit=5", *words]) == 2
    assert "limit=5: must be a key of the config" in capsys.readouterr().err
