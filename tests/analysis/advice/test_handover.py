"""The code under a *go* trains as the runs that it was said of."""

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch.distributed.pipelining import PipelineStage
from torch.nn.functional import mse_loss

import pipegap
from pipegap.analysis import advise, load
from pipegap.analysis.advice.advise import handover
from tests.support.synthetic_store import write_arms

SYNC, FEEDBACK = [1.00, 1.01, 1.02], [0.90, 0.92, 0.91]
CLIP = 0.1


def lines(store: Path, delay: list[float], feedback: list[float]) -> str:
    losses: dict[str, list[float | None]] = {"sync": [*SYNC], "delay": [*delay]}
    write_arms(store, losses | {"delay_ef": [*feedback]}, optimizer="muon")
    return handover([advise(load(store), optimizer="muon", stages=4, microbatches=8)])


def new() -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR


@pytest.mark.usefixtures("one_rank")
def test_the_code_trains_with_the_delay_and_the_coefficient_that_were_judged(
    tmp_path: Path,
) -> None:
    head, *code = lines(tmp_path, [1.20, 1.22, 1.23], FEEDBACK).splitlines()
    assert head.startswith("to go with Muon on torch.distributed.pipelining, in place of ")
    assert len(code) == 3
    batches = torch.randn(6, 8, 2, generator=torch.Generator().manual_seed(1))
    *before, drain = dedent("\n".join(code)).splitlines()

    model, optimizer, decay = new()
    names = {
        **{"pipegap": pipegap, "loss_fn": mse_loss, "max_norm": CLIP, "optimizer": optimizer},
        **{"scheduler": decay(optimizer, 0.9), "evaluate": lambda: None, "save": lambda: None},
        "stage": PipelineStage(model, 0, 1, torch.device("cpu")),
    }
    exec("\n".join(before), names)
    for batch in batches:
        names["schedule"].step(batch, target=batch.flip(1))
    exec(drain, names)

    expected, inner, decay = new()
    delayed = pipegap.DelayedOptimizer(inner, delay=1, error_feedback=1.0)
    scheduler = decay(delayed, 0.9)
    for batch in batches:
        delayed.zero_grad()
        mse_loss(expected(batch), batch.flip(1)).backward()
        torch.nn.utils.clip_grad_norm_(expected.parameters(), CLIP)
        delayed.step()
        scheduler.step()
    with delayed.newest():
        for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_the_coefficient_is_that_of_the_arm_that_won(tmp_path: Path) -> None:
    assert "error_feedback=0)" in lines(tmp_path, [0.80, 0.81, 0.82], FEEDBACK)


def test_where_nothing_says_go_there_is_no_code(tmp_path: Path) -> None:
    assert not lines(tmp_path, [1.20, 1.22, 1.23], [1.30, 1.31, 1.33])
