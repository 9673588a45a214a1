"""Which trial is tried before a sweep, and what is told where it fails or has no room."""

from pathlib import Path

import pytest

from pipegap.sweeps.cluster.first_trial import cause, largest
from pipegap.sweeps.plan.devices import require_room
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.plan import plan_trial
from tests.support import small

ROOM = {"CPU": 1.0, "GPU": 1.0}


def trial_of(folder: Path, *words: str) -> Trial:
    config = small.config(folder, *words)
    config = {**config, "device": "cuda"}  # this machine need not have one
    return Trial("sync", config, plan_trial(config))


def test_an_error_becomes_one_line_with_what_to_change() -> None:
    message = "rank 1 raised:\nTraceback\ntorch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB"
    assert cause(message) == (
        "torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB: take more "
        "pipeline.num_microbatches, or model.activation_checkpointing=true"
    )
    assert cause("one line") == "one line"


def test_the_largest_trial_is_tried(tmp_path: Path) -> None:
    words = "correction=error_feedback", "pipeline=pipedream_2bw"
    trials = [trial_of(tmp_path), trial_of(tmp_path, *words), trial_of(tmp_path, *words[1:])]
    assert largest(trials) is trials[1]


@pytest.mark.parametrize(
    ("needed", "says"),
    [
        ([{"CPU": 2.0}], "num_threads=2.0: a trial needs 2 CPU, Ray has 1"),
        ([{}, *[{"GPU": 1.0}] * 2], "device=2.0: a trial needs 2 GPU for its 2 ranks, Ray has 1"),
    ],
)
def test_a_cluster_that_is_too_small_is_refused(needed: list[dict[str, float]], says: str) -> None:
    require_room([{"CPU": 1.0, "GPU": 1.0}], ROOM)
    with pytest.raises(BadInput) as refused:
        require_room(needed, ROOM)
    assert str(refused.value) == says
