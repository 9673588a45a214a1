"""examples/llama/train.py, as its first lines say, against one process with delayed optimizers."""

import re
import subprocess
import sys

import pytest
import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from pipegap.trainer.delayed import DelayedOptimizer
from tests.support.markdown import ROOT

UPDATES = 5


def printed(*words: str) -> list[float]:
    """The losses that two ranks print."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += ["2", "-m", "examples.llama.train", "--updates", str(UPDATES), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"^batch \d+: (\S+)$", done.stdout, re.MULTILINE)]


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
@pytest.mark.parametrize(("delay", "words"), [(0, ()), (1, ("--asynchronous",))])
def test_two_ranks_train_as_one_process(
    delay: int, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    expected = emulated(delay, monkeypatch)
    assert printed(*words) == pytest.approx(expected, rel=0, abs=1e-5)
    assert expected != pytest.approx(emulated(1 - delay, monkeypatch), rel=0, abs=1e-3)
