"""Every schedule starts and ends under NCCL's rules about communicators, evaluation included."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import gangs, small
from trainer.base.places import CONF

SHAPE = ("batch_size=8", "num_updates=4", "pipeline.num_microbatches=4")
SCHEDULES = sorted(path.stem for path in (CONF / "pipeline").glob("*.yaml"))
WORDS = {
    "dualpipe_v": ("pipeline.num_microbatches=8",),  # which four ranks need
    "pipedream_2bw": ("correction=error_feedback",),
    "constant_delay": ("pipeline.delay=2",),
    "interleaved_1f1b": ("pipeline.num_chunks=2",),
}
"""What a schedule is given beside the shape."""


def config(folder: Path, schedule: str, p: int, *words: str) -> dict[str, Any]:
    microbatches = ["pipeline.num_microbatches=6", "batch_size=6"] if p == 3 else []
    layers = f"model.num_layers={2 * p}"  # some schedules have two parts of the model per rank
    stages = (f"pipeline={schedule}", f"pipeline.num_stages={p}", *WORDS.get(schedule, ()))
    return small.config(folder, *SHAPE, layers, *stages, *microbatches, *words)


@pytest.mark.parametrize("p", [2, 3, 4])
def test_every_schedule_runs(tmp_path: Path, p: int) -> None:
    """The ranks wait for each other where NCCL would; numbers are those of the emulation."""
    configs = [config(tmp_path, schedule, p) for schedule in SCHEDULES]
    gangs.all_equal(configs, gangs.as_rank_of_many)


@pytest.mark.parametrize("p", [1, 2])
def test_replicas_run(tmp_path: Path, p: int) -> None:
    configs = [
        config(tmp_path, schedule, p, "num_replicas=2") for schedule in ("sync", "pipedream_2bw")
    ]
    gangs.all_equal(configs, gangs.as_rank_of_many)
