"""Schedule-Free trains at y, and is evaluated and exported at x, their average."""

import torch
from torch import nn

from tests.support import toy
from tests.support.delayed import PHASES
from tests.support.every_optimizer import maker
from trainer.schedules.recipes import pipedream_2bw


def test_it_is_evaluated_and_exported_at_the_average() -> None:
    """test_references.py has which average that is."""
    schedule = pipedream_2bw(6, num_stages=2, num_microbatches=1, **PHASES)
    executor = toy.emulated(schedule, maker("schedule_free_adamw", lr=0.02, weight_decay=0.0))
    rows = toy.batch(99)
    for first in range(6):
        toy.run(executor, (first, first + 1))
        before = toy.weights(executor)
        loss = executor.evaluate([rows])
        assert all(map(torch.equal, toy.weights(executor), before)), "looking changes nothing"

    model = nn.Sequential(*toy.modules(1)[0])
    exported = [t for stage in executor._stages for t in stage.weights().values()]
    for parameter, average, y in zip(model.parameters(), exported, before, strict=True):
        assert not torch.equal(average, y)
        parameter.data.copy_(average)
    expected = toy.loss(model(rows[:, :-1]), rows[:, 1:]).detach()
    assert abs(loss - float(expected)) < 1e-12
