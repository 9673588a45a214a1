"""A rank of a true pipeline on a GPU that is not there: channels, sums over ranks, divided states.

Its peers are torch's fake process group. Messages, streams and NCCL themselves are not proven here.
"""

from typing import Any

import pytest

from pipegap.trainer.config.plan import plan_trial
from tests.support import hybrid, moe
from tests.support.fake_cuda.asked import answers, needed, small
from tests.support.steps import resolved, words_of_scale

pytestmark = [pytest.mark.slow, needed]
UPDATES = 3
EF = "correction=error_feedback"


def of(p: int, *words: str) -> list[str]:
    """The words of a trial of p ranks, with a layer for each stage."""
    shape = (
        f"model.num_layers={2 * p}",
        f"pipeline.num_stages={p}",
        f"pipeline.num_microbatches={p}",
    )
    return small(*shape, f"batch_size={2 * p}", *words)


RANKS = {
    **{f"{p} ranks, {rank}": (of(p, EF), rank) for p, rank in ((2, 0), (2, 1), (4, 2), (8, 7))},
    **{
        " ".join(words[:2]): (of(2, *words), rank)
        for rank, words in (
            (1, ["optimizer=muon", EF]),
            (0, ["pipeline=zero_bubble_v"]),
            (1, ["pipeline=dualpipe_v", "pipeline.num_microbatches=4"]),
            (0, ["pipeline=pipedream"]),
            (1, ["pipeline=pipedream", "clip_scope=stage"]),
            (0, ["num_replicas=2", EF]),
            (1, [*moe.WORDS, "model.num_layers=2"]),
            (0, [*hybrid.WORDS, "model.num_layers=2"]),
        )
    },
}


# The chunks of the linear mixers cost time here, and no memory that a checkpoint has.
FEW = ("batch_size=8", "pipeline.num_microbatches=8", "compile=false", "model.chunk_size=2048")
LARGEST = words_of_scale("10b", "pipeline=pipedream_2bw", EF, *FEW)


@pytest.fixture(scope="module")
def looked_at(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """What was seen of each rank, by name."""
    questions = [
        {"module": "rank", "words": words, "rank": rank, "updates": UPDATES}
        for words, rank in RANKS.values()
    ]
    largest = {"module": "rank", "words": LARGEST, "rank": 0, "updates": 1, "saves": True}
    seen = answers(request.config, [*questions, largest])
    return dict(zip([*RANKS, "10b"], seen, strict=True))


def test_rank_0_of_the_largest_scale_at_a_checkpoint(looked_at: dict[str, dict[str, Any]]) -> None:
    """A GPU of 80 GB holds rank 0 of 10b on eight ranks, AdamW with a delay and Error Feedback,
    while the gang is saved: nothing of another rank is there, and of its own nothing twice."""
    facts = looked_at["10b"]
    assert facts["error"] is None, facts["error"]
    assert 20e9 < facts["peaks"]["checkpoint"] < 60e9
    assert plan_trial(resolved([*LARGEST, "device=cpu"])).memory_bytes < 60e9, "the largest rank"


@pytest.mark.parametrize("name", RANKS)
def test_a_rank_on_a_gpu(looked_at: dict[str, dict[str, Any]], name: str) -> None:
    """The host waits once per update, in the thread of the sums, and at the drain for the clock's
    events; nothing is copied to the host. With a clip by stage it waits in that thread for what the
    stage has, and for what all have some updates later."""
    facts = looked_at[name]
    assert facts["error"] is None, facts["error"]
    assert not facts["mixed"]
    assert not facts["refused"]
    waits = {
        why: n for why, n in facts["waits"]["updates"].items() if "tracing/clock.py" not in why
    }
    expected = {"tolist": UPDATES} | ({"item": UPDATES} if "clip_scope=stage" in name else {})
    assert {why.partition(" at ")[0]: n for why, n in waits.items()} == expected
