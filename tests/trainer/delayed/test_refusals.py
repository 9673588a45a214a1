"""What cannot be delayed is refused, in one line that names the argument."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import every_optimizer
from tests.support.delayed import ADAMW
from tests.support.own_loop import Loop
from trainer.base.errors import BadInput
from trainer.corrections.none import NoCorrection
from trainer.corrections.taylor import Taylor
from trainer.corrections.weight_prediction import WeightPrediction
from trainer.delayed import DelayedOptimizer

WRONG: dict[str, dict[str, Any]] = {
    "delay=-1: must be an int from 0 to 4096": {"delay": -1},
    "delay=True: must be an int": {"delay": True},
    "delay=1.0: must be an int": {"delay": 1.0},
    "error_feedback=-1: must be a number": {"error_feedback": -1},
    "error_feedback=nan: must be a number": {"error_feedback": float("nan")},
    "keep=both: must be 'weights' or 'gradients'": {"keep": "both"},
    "clip_norm=0: must be larger than 0": {"clip_norm": 0},
    "num_updates=None: is required for a cooldown": {"synchronous_cooldown": 3},
    "num_updates=None: is required with a correction": {"correction": NoCorrection},
    "num_updates=0: must be an int from 1": {"num_updates": 0},
    "synchronous_start=1.5: must be a number of updates": {"synchronous_start": 1.5},
    "synchronous_cooldown=9: at most num_updates": {"synchronous_cooldown": 9, "num_updates": 5},
    "correction=taylor: must be a class": {"correction": "taylor", "num_updates": 5},
    "correction.decay=missing: is required": {
        "correction": partial(Taylor, coefficient=1.0),
        "num_updates": 5,
    },
    "keep=gradients: must be 'weights' with a correction that predicts": {
        "correction": partial(WeightPrediction, horizon=1.0),
        "num_updates": 5,
        "keep": "gradients",
    },
}


@pytest.mark.parametrize("says", WRONG)
def test_a_wrong_argument_is_named_in_one_line(says: str) -> None:
    with pytest.raises(BadInput) as caught:
        DelayedOptimizer(torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1), **WRONG[says])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_wrapped_is_refused() -> None:
    weights = [nn.Parameter(torch.ones(2, 2))]
    inner = torch.optim.SGD(weights, lr=0.1)
    with pytest.raises(BadInput, match=r"must be a torch\.optim\.Optimizer"):
        DelayedOptimizer(weights)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="delayed already"):
        DelayedOptimizer(DelayedOptimizer(inner))
    with pytest.raises(BadInput, match="only trials can delay it"):
        DelayedOptimizer(every_optimizer.maker("sophia")([("matrix", weights[0])]))


def test_more_steps_than_were_said_are_refused() -> None:
    loop = Loop(ADAMW, num_updates=2)
    loop.run(range(2))
    with pytest.raises(RuntimeError, match="num_updates=2 are made"):
        loop.run(range(2, 3))
