"""Schedule-Free trains at y, and is evaluated and exported at x, their average, in every arm."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from schedulefree import AdamWScheduleFree
from torch import nn
from torch.optim import Optimizer

from pipegap.trainer.optimizers.in_parts import OptimizerInParts
from pipegap.trainer.optimizers.routing import Parameters
from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.schedules.recipes import constant_delay, pipedream, pipedream_2bw, sync
from tests.support import toy
from tests.support.delayed import PHASES
from tests.support.every_optimizer import maker

OURS = maker("schedule_free_adamw", lr=0.02, weight_decay=0.0)


def bare(parameters: Parameters) -> Optimizer:
    optimizer = AdamWScheduleFree([weight for _, weight in parameters], lr=0.02)
    optimizer.train()
    return optimizer


def in_parts(parameters: Parameters) -> Optimizer:
    return OptimizerInParts(bare, parameters, is_entrywise=True)


@pytest.mark.parametrize(
    "optimizer",
    [OURS, bare, in_parts],
    ids=["ours", "bare", "in parts"],
)
@pytest.mark.parametrize(
    "make",
    [
        sync,
        partial(pipedream_2bw, **PHASES),
        partial(pipedream, **PHASES),
        partial(constant_delay, delay=3, **PHASES),
    ],
    ids=["sync", "pipedream_2bw", "pipedream", "constant_delay"],
)
def test_it_is_evaluated_and_exported_at_the_average(
    make: Callable[..., Schedule], optimizer: Callable[[Parameters], Optimizer]
) -> None:
    """x of y = 0.9 x + 0.1 z; test_references.py has which average that is."""
    executor = toy.emulated(make(6, num_stages=2, num_microbatches=1), optimizer)
    rows = toy.batch(99)
    for first in range(6):
        toy.run(executor, (first, first + 1))
        before = toy.weights(executor)
        loss = executor.evaluate([rows])
        assert all(map(torch.equal, toy.weights(executor), before)), "looking changes nothing"

    model = nn.Sequential(*toy.modules(1)[0])
    exported = [t for stage in executor.stages for t in stage.weights().values()]
    masters = [(stage.optimizer, w) for stage in executor.stages for w in stage.versions.master]
    columns = zip(model.parameters(), exported, before, masters, strict=True)
    for parameter, average, y, (stepped, master) in columns:
        state = stepped.state[master]
        [z] = [part["z"] for part in state.get("parts", [state])]
        expected = (y - 0.1 * z.view_as(y)) / 0.9
        torch.testing.assert_close(average, expected, rtol=1e-12, atol=1e-14)
        assert not torch.equal(average, y)
        parameter.data.copy_(average)
    at_x = toy.loss(model(rows[:, :-1]), rows[:, 1:]).detach()
    assert abs(loss - float(at_x)) < 1e-12
