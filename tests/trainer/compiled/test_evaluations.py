"""Evaluations of a compiled stage, by graphs as they were traced."""

from typing import Any

import pytest
import torch

from pipegap.trainer.base.resources import reproducible
from tests.support.smallest import DENSE, trainer

DELAYED = ("pipeline=pipedream_2bw", "correction=error_feedback")


@pytest.mark.parametrize(
    "words",
    [
        DENSE,
        (*DENSE, "model.num_layers=2", "pipeline.num_stages=2"),
        (*DENSE, "eval_dtype=bfloat16", "model.num_layers=2", "pipeline.num_stages=2"),
    ],
    ids=len,
)
def test_an_evaluation_is_a_plain_stages(words: tuple[str, ...], graphs: list[Any]) -> None:
    """Batches of the first one's shape are a graph's; the last batch is shorter."""
    batches = torch.randint(30, (11, 9), generator=torch.Generator().manual_seed(0)).split(5)
    with reproducible(0, 1):
        plain, compiled = (
            trainer(*words, *DELAYED, f"compile={way}") for way in ("false", "update")
        )
        expected, num_graphs = plain.evaluate(batches), len(graphs)
        assert compiled.evaluate(batches) == expected
        assert len(graphs) == num_graphs + len(compiled.stages)
        for first, last in ((0, 3), (3, 4)):  # the newest version lies in another slot each time
            for run in (plain, compiled):
                run.run(first, last, lambda update: None)
            expected = pytest.approx(plain.evaluate(batches), rel=1e-6)
            assert compiled.evaluate(batches) == expected


@pytest.mark.parametrize(
    "words",
    [
        ("optimizer=schedule_free_adamw",),
        ("correction=ema_nesterov", "correction.start=0", "correction.look_ahead=50"),
    ],
)
def test_averages_are_not_evaluated_as_the_newest_weights(
    words: tuple[str, ...], graphs: list[Any]
) -> None:
    batches = torch.randint(30, (8, 9), generator=torch.Generator().manual_seed(0)).split(4)
    found = []
    for way in ("false", "update"):
        run = trainer(*DENSE, *words, f"compile={way}")
        with reproducible(0, 1):
            run.run(0, 3, lambda update: None)
            found.append(run.evaluate(batches))
    assert found[1] == pytest.approx(found[0], rel=1e-6)
