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
from pipegap.trainer.averaged import mean_of_last, validation_loss
from pipegap.trainer.base.build import build
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.parts import open_data
from pipegap.trainer.store.snapshot import Snapshot
from pipegap.trainer.trial import run_trial
from tests.support import small
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
    updates, mean = mean_of_last(folders[7], 3)
    assert updates == [4, 6, 7]
    assert len([*(folders[7] / "weights").iterdir()]) == 3
    assert mean.keys() == sets[0].keys()
    for name, weight in mean.items():
        torch.testing.assert_close(weight, sum(of[name] for of in sets) / 3, rtol=0, atol=1e-7)
    _, last = mean_of_last(folders[7], 1)
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
    with pytest.raises(BadInput, match=r"average=4: must be at most 3, the sets that .* has"):
        mean_of_last(folders[7], 4)


def test_the_command_says_it_of_each_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of those that are finished."""
    sweep = tmp_path / "short.yaml"
    base = ", ".join(small.overrides(tmp_path, "save_last=2"))
    arms = "{sync: [pipeline=sync], delay: [pipeline=pipedream_2bw]}"
    sweep.write_text(f"base: [{base}]\ngrid: {{optimizer: [adamw]}}\narms: {arms}\nseeds: [0]\n")
    words = (f"sweep={sweep}", "num_updates=7", "checkpoint_every=5", f"results={tmp_path}")
    [trial, _] = all_planned(plan_sweeps(parse_request(words), Snapshot()))
    run_trial(trial.config)
    _, mean = mean_of_last(trial.folder, 2)
    capsys.readouterr()
    assert main(["evaluate", "average=2", *words]) == 0
    [line] = capsys.readouterr().out.splitlines()
    loss = f"{validation_loss(trial.config, mean):.5f}"
    assert line.endswith(f"; {loss}, the mean of updates 5, 7")
    assert main(["evaluate", "average=3", *words]) == 2
    assert "average=3: must be at most 2" in capsys.readouterr().err
    shutil.rmtree(trial.folder / "weights")
    assert main(["evaluate", "average=3", *words]) == 2
    assert "none: save_last=3 keeps them, of a run into another" in capsys.readouterr().err
    assert main(["evaluate", "average=3", *words, "seeds=[1]"]) == 2
    assert "must have a completed trial: " in capsys.readouterr().err
    assert main(["evaluate", "average=2", "limit=5", *words]) == 2
    assert "limit=5: must be a key of the config" in capsys.readouterr().err
