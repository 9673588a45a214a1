"""The true pipeline and its emulation against torch.distributed.pipelining, to the last bit.

One gang trains every config with our pipeline, then with torch's, in the same processes.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pipegap.trainer.base.resources import reproducible
from pipegap.trainer.parts import build_parts, build_pipelined
from pipegap.trainer.ranks.groups import Heartbeat, joined
from tests.oracles import torch_runtime
from tests.support import gangs, small

Config = dict[str, Any]
Theirs = Callable[..., torch_runtime.Trained]
Case = tuple[Config, Theirs]
Both = tuple[gangs.Numbers, torch_runtime.Trained]
# Torch's runtime knows no tied weights, and no clip. Layers that are recomputed read their weights
# in the backward too. Our runs drain in the middle, torch's do not.
WORDS = (
    "model.num_layers=4",
    "model.tied_embeddings=false",
    "model.activation_checkpointing=true",
    "batch_size=12",
    "num_updates=6",
    "clip_norm=null",
)
FOUR = "pipeline.num_microbatches=4"
NOT_AGAIN = "model.activation_checkpointing=false"  # torch cannot split a recomputed backward
ALWAYS: list[tuple[Theirs, tuple[str, ...]]] = [
    (torch_runtime.one_forward_one_backward, ("pipeline=sync", FOUR)),
    (torch_runtime.operations, ("pipeline=zero_bubble_h1", FOUR, NOT_AGAIN)),
    (torch_runtime.operations, ("pipeline=pipedream_2bw", FOUR)),
]
CASES = {
    2: ALWAYS,
    4: [
        *ALWAYS,
        # with the fewest microbatches that it can have; with a delay of each stage's own
        (torch_runtime.operations, ("pipeline=pipedream_2bw", "pipeline.num_microbatches=3")),
        (torch_runtime.operations, ("pipeline=pipedream", "pipeline.num_microbatches=1")),
    ],
}


def as_rank(
    store: dist.Store, heartbeat: Heartbeat, send: Callable[[object], None], cases: Sequence[Case]
) -> None:
    p = cases[0][0]["pipeline"]["num_stages"]
    with reproducible(0, 1), joined(store, heartbeat.rank, p, 1, gangs.CPU, heartbeat, 60) as gang:
        for config, theirs in cases:
            parts = build_parts(config, config["num_updates"])
            ours = gangs.train(build_pipelined(config, parts, gang), parts)
            send((ours, theirs(config, parts, gang.place)))


def assert_equal(config: Config, ranks: Sequence[Both]) -> list[float]:
    """Losses and final weights of torch's run, of our pipeline, and of its emulation."""
    ours = gangs.assert_equal(config, [ours for ours, _ in ranks])
    losses, _ = ranks[-1][1]
    weights = {name: weight for _, (_, tensors) in ranks for name, weight in tensors.items()}
    assert [update.loss for update in ours.updates] == losses
    assert ours.weights.keys() == weights.keys()
    for name, weight in weights.items():
        assert torch.equal(ours.weights[name], weight), name
    return losses


@pytest.mark.parametrize("p", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_torch_trains_alike(tmp_path: Path, p: int) -> None:
    """The flushed 1F1B against torch's own schedule, the others against torch running our list."""
    stages = f"pipeline.num_stages={p}"
    cases = [(small.config(tmp_path, *WORDS, stages, *words), run) for run, words in CASES[p]]
    by_rank = gangs.sent(as_rank, p, cases)
    losses = [
        assert_equal(config, ranks) for (config, _), *ranks in zip(cases, *by_rank, strict=True)
    ]
    shows = [abs(losses_of_rank[1] - losses[0][1]) > 1e-3 for losses_of_rank in losses]
    assert shows == ["pipedream" in config["pipeline"]["_target_"] for config, _ in cases]
