"""What a preflight says of a machine, and what it tells people to change."""

from pathlib import Path

import pytest

from pipegap.sweeps.cluster import first_trial as preflight
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.resources import Machine
from pipegap.trainer.config.plan import plan_trial
from tests.support import small

GB = 10**9
SOUND = Machine(
    host="node",
    torch="2.13.0",
    cuda="13.0",
    device="NVIDIA H100 80GB HBM3",
    free=79 * GB,
    total=80 * GB,
    disk=100 * GB,
)


def trial_of(folder: Path, *words: str) -> Trial:
    config = small.config(folder, *words)
    config = {**config, "device": "cuda"}  # this machine need not have one
    return Trial("sync", config, plan_trial(config))


def changes(folder: Path, machine: Machine) -> list[str]:
    return [*preflight.changes(machine, [trial_of(folder)], 30 * GB)]


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [("free", 30.5 * GB, "free memory: 30 GB"), ("disk", 1000, "make room: the sweep writes ")],
)
def test_each_lack_is_told(tmp_path: Path, key: str, value: object, told: str) -> None:
    assert changes(tmp_path, SOUND) == []
    [change] = changes(tmp_path, SOUND._replace(**{key: value}))
    assert change.startswith(told)


def test_an_error_becomes_one_line_with_what_to_change() -> None:
    message = "rank 1 raised:\nTraceback\ntorch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB"
    assert preflight.cause(message) == (
        "torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB: take more "
        "pipeline.num_microbatches, or model.activation_checkpointing=true"
    )
    assert preflight.cause("one line") == "one line"


def test_the_largest_trial_is_tried(tmp_path: Path) -> None:
    words = "correction=error_feedback", "pipeline=pipedream_2bw"
    trials = [trial_of(tmp_path), trial_of(tmp_path, *words), trial_of(tmp_path, *words[1:])]
    assert preflight.largest(trials) is trials[1]
