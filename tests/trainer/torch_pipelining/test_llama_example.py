"""examples/llama/train.py, as its first lines say, against one process with delayed optimizers."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from pipegap.analysis.advice.traces import traced_costs
from pipegap.trainer.delayed import DelayedOptimizer
from tests.support.markdown import ROOT

UPDATES = 7


def printed(*words: str) -> tuple[list[float], str]:
    """The losses that two ranks print, and the last line."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += ["2", "-m", "examples.llama.train", "--updates", str(UPDATES), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses = re.findall(r"^batch \d+: (\S+)$", done.stdout, re.MULTILINE)
    return [*map(float, losses)], done.stdout.splitlines()[-1]


def emulated(delay: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    from examples.llama.train import MAX_NORM, Stage, batches, loss_of

    monkeypatch.chdir(ROOT)
    stages = [Stage(number, 2) for number in range(2)]
    optimizers = [DelayedOptimizer(AdamW(s.parameters(), lr=3e-3), delay, 1.0) for s in stages]
    losses = []
    for x, y in batches(UPDATES):
        loss = loss_of(stages[1](stages[0](x)), y)
        losses.append(loss.item())
        loss.backward()
        clip_grad_norm_([w for stage in stages for w in stage.parameters()], MAX_NORM)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delay", "words", "key"),
    [(0, (), "step_time"), (1, ("--asynchronous",), "time_2bw"), (0, ("--fsdp",), "rival.fsdp")],
)
def test_two_ranks_train_as_one_process(
    delay: int, words: tuple[str, ...], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    expected = emulated(delay, monkeypatch)
    losses, to_paste = printed(*words)
    assert losses == pytest.approx(expected, rel=0, abs=1e-5)
    assert expected != pytest.approx(emulated(1 - delay, monkeypatch), rel=0, abs=1e-3)
    assert re.fullmatch(rf"pipegap advise stages=2 microbatches=4 {key}=[\d.]+", to_paste)


@pytest.mark.slow
def test_a_trace_of_its_ranks_has_their_times(tmp_path: Path) -> None:
    """On a CPU, by microseconds in which an operation runs that is no message; torch's own."""
    _, to_paste = printed("--profile", str(tmp_path))
    costs = traced_costs(tmp_path, 2, 4)
    walls, works = [], []
    for rank in range(2):
        told = json.loads((tmp_path / f"rank{rank}.json").read_text())["traceEvents"]
        events = [event for event in told if event["ph"] == "X"]
        steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
        begin, end = steps[0]["ts"], max(event["ts"] + event["dur"] for event in steps)
        runs = np.zeros(int(end - begin) + 1, dtype=bool)
        for event in events:
            if event["cat"] == "cpu_op" and not re.search("c10d|gloo|param_comms", event["name"]):
                first = event["ts"] - begin
                runs[max(0, int(first)) : max(0, int(first + event["dur"]))] = True
        walls.append((end - begin) / len(steps))
        works.append(runs.sum() / len(steps))
    of_updates = np.array(works) - 4 * np.array(costs.work)
    assert ((of_updates > 0) & (of_updates < 1.2 * costs.update)).all()
    assert costs.overlap == pytest.approx(4 * sum(costs.work) / np.mean(walls), rel=0.05)
    assert np.mean(walls) == pytest.approx(1e6 * float(to_paste.split("=")[-1]), rel=0.5)
