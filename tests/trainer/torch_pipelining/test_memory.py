"""How many sets of weights a rank holds at most, counted by the bytes of live tensors."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from pipegap.trainer.corrections.compensation import WeightPrediction
from pipegap.trainer.torch_pipelining import Schedule2BW
from tests.support.live_memory import LiveMemory

WIDTH, LAYERS, ROWS, BATCHES = 64, 16, 2, 4
SET = 4 * LAYERS * WIDTH**2
"""Bytes. Activations are a hundredth of it, and a layer, which a step computes on, a sixteenth."""


def sets(schedule: type[Schedule1F1B], **options: Any) -> tuple[float, float]:
    """After some batches of plain SGD: what a stage and its schedule hold, and the peak so far."""
    x = torch.ones(ROWS, WIDTH)
    with LiveMemory() as live:
        module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, foreach=False)

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad()

        if schedule is Schedule2BW:
            options["update"] = update
        stage = PipelineStage(module, 0, 1, torch.device("cpu"))
        made = schedule(stage, ROWS, nn.functional.mse_loss, **options)
        for _ in range(BATCHES):
            made.step(x, target=x)
            if schedule is Schedule1F1B:
                update()
        if isinstance(made, Schedule2BW):
            with made.drained():
                pass
        return live.live / SET, live.peak / SET


PREDICTION = {"correction": partial(WeightPrediction, horizon=1.0), "num_updates": BATCHES}


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("schedule", "options", "held", "peak"),
    [
        (Schedule1F1B, {}, 1, 2),
        (Schedule2BW, {"error_feedback": 0.0}, 2, 4),
        (Schedule2BW, {}, 3, 5),
        (Schedule2BW, PREDICTION, 3, 7),
    ],
    ids=["1F1B", "2BW", "with Error Feedback", "with weight prediction"],
)
def test_sets_of_weights(
    schedule: type[Schedule1F1B], options: dict[str, Any], held: int, peak: int
) -> None:
    assert sets(schedule, **options) == pytest.approx((held, peak), rel=0, abs=0.1)
