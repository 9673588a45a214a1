"""Every schedule starts and ends under NCCL's rules about communicators, evaluation included."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pipegap.trainer.base.places import CONF
from tests.support import gangs, small
from tests.support.lazy_kernels import Context
from tests.support.nccl_like import NcclLike

SHAPE = ("batch_size=8", "num_updates=4", "pipeline.num_microbatches=4")
REPLICAS = ("runner=pipelined", "num_replicas=2")
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


@pytest.mark.long
@pytest.mark.parametrize("p", [*(pytest.param(p, marks=pytest.mark.slow) for p in (2, 3)), 4])
def test_every_schedule_runs(tmp_path: Path, p: int) -> None:
    """The ranks wait for each other where NCCL would; numbers are those of the emulation."""
    configs = [config(tmp_path, schedule, p) for schedule in SCHEDULES]
    # Ranks that go on while a sum is on its way.
    alone = config(tmp_path, "pipedream", p, "clip_scope=stage", "pipeline.num_microbatches=1")
    gangs.all_equal([*configs, alone], gangs.as_rank_of_many)


@pytest.mark.parametrize("p", [1, 2])
def test_replicas_run(tmp_path: Path, p: int) -> None:
    configs = [config(tmp_path, schedule, p, *REPLICAS) for schedule in ("sync", "pipedream_2bw")]
    gangs.all_equal(configs, gangs.as_rank_of_many)


SUM, BROADCAST = ("sum", 0), ("broadcast", 0)


@pytest.mark.parametrize(
    ("of_first", "of_second", "said"),
    [
        ([SUM, BROADCAST], [SUM, BROADCAST], None),
        ([SUM, BROADCAST], [BROADCAST, SUM], "/1 is a broadcast of 3 from rank 0 on rank 1"),
        ([("broadcast", 1)], [BROADCAST], "/1 is a broadcast of 3 from rank 0 on rank 1"),
    ],
)
def test_the_rules_see_collectives_in_another_order(
    monkeypatch: pytest.MonkeyPatch,
    of_first: list[tuple[str, int]],
    of_second: list[tuple[str, int]],
    said: str | None,
) -> None:
    """Two ranks, one after the other, of a communicator that both have built."""
    for name in ("all_reduce", "broadcast"):
        monkeypatch.setattr(dist, name, lambda *_, **__: None)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0, 1])
    store, group, tensor = dist.HashStore(), SimpleNamespace(group_name="g"), torch.zeros(3)
    for rank in (0, 1):
        store.set(f"g/all/{rank}", b"here")
    first, second = NcclLike(store, 0), NcclLike(store, 1)

    def call(like: NcclLike, calls: list[tuple[str, int]]) -> None:
        for kind, source in calls:
            if kind == "sum":
                like.all_reduce(tensor, group=group)
            else:
                like.broadcast(tensor, source, group)

    call(first, of_first)
    if said is None:
        call(second, of_second)
        return
    with pytest.raises(ValueError, match=said):
        call(second, of_second)


@pytest.mark.parametrize(("always", "waits"), [(False, 1), (True, 2)])
def test_to_load_a_kernel_waits_for_messages(always: bool, waits: int) -> None:
    waited: list[int] = []
    context = Context()
    start = context.starting(lambda: SimpleNamespace(wait=lambda: waited.append(1)))
    launch = context.launching("math.sqrt", always=always)
    for _ in range(2):
        start()
        assert launch(4.0) == 2.0
    assert len(waited) == waits
