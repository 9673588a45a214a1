"""A stage that clips by its own norm waits for no other one, and gives the emulation's numbers."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch.distributed as dist

from pipegap.trainer.executors.reduction import Totals
from pipegap.trainer.ranks.groups import Heartbeat
from pipegap.trainer.stages.stage import Stage
from tests.support import gangs, small

PIPEDREAM = ("pipeline=pipedream", "pipeline.num_microbatches=1", "correction=error_feedback")
"""An update per microbatch, which the last stage reads at once."""
ZERO_BUBBLE = ("pipeline=zero_bubble_v", "pipeline.num_microbatches=4")


def config(folder: Path, *words: str) -> dict[str, Any]:
    shape = ("model.num_layers=8", "batch_size=8", "num_updates=8", "clip_norm=0.1")
    return small.config(folder, *shape, "clip_scope=stage", *words)


def with_totals_held_back(
    store: dist.Store,
    heartbeat: Heartbeat,
    send: Callable[[object], None],
    configs: Sequence[gangs.Config],
) -> None:
    """The first rank adds nothing to the totals before the last one has applied two updates."""
    begin, update = Totals.__init__, Stage.update

    def late(*args: Any) -> None:
        if heartbeat.rank == 0:
            store.wait(["1 is applied"], timedelta(seconds=30))
        begin(*args)

    def noted(stage: Stage, batch: int, gradients: Any) -> None:
        update(stage, batch, gradients)
        if heartbeat.rank == 1:
            store.set(f"{batch} is applied", "")

    with patch.object(Totals, "__init__", late), patch.object(Stage, "update", noted):
        gangs.as_rank(store, heartbeat, send, configs)


def test_the_last_stage_goes_on_alone(tmp_path: Path) -> None:
    gangs.all_equal(
        [config(tmp_path, *PIPEDREAM, "pipeline.num_stages=2", "model.tied_embeddings=false")],
        with_totals_held_back,
    )


@pytest.mark.long
@pytest.mark.parametrize("p", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_every_number_is_the_emulations(tmp_path: Path, p: int) -> None:
    """Tied embeddings, whose two copies do wait for each other. A divergence ends every rank at the
    same update; Shampoo raises if it is given what is not finite."""
    ways = [PIPEDREAM, (*PIPEDREAM, "optimizer=muon"), ZERO_BUBBLE, ("clip_norm=null",)]
    diverging = [
        (f"optimizer={optimizer}", f"optimizer.lr={lr}", *way)
        for optimizer, lr in (("sgd", "1e12"), ("shampoo", "1e30"))
        for way in (PIPEDREAM, ZERO_BUBBLE)
    ]
    stages = f"pipeline.num_stages={p}"
    configs = [config(tmp_path, *way, stages) for way in (*ways, *diverging)]
    for way, each, ranks in zip(
        (*ways, *diverging), configs, gangs.pipelined(configs), strict=True
    ):
        if way in ways:
            gangs.assert_equal(each, ranks)
            continue
        expected = gangs.emulated(each)
        assert expected.diverged is not None, each
        assert {rank.diverged for rank in ranks} == {expected.diverged}, each
        assert ranks[0].updates == expected.updates  # of the rank that records
