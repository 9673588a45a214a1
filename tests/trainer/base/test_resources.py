"""A trial leaves the process as it found it; ranks have their devices; cores are counted."""

import gc
import os
import pickle
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from pipegap.trainer.base.children import num_cores
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.resources import (
    MANY_OBJECTS,
    on_cpu,
    rank_device,
    reproducible,
    reset_peak_memory,
)


def test_the_generator_goes_on_from_where_it_was() -> None:
    torch.manual_seed(5)
    torch.rand(3)
    before = torch.get_rng_state()
    with reproducible(7, 1):
        first = torch.rand(3)
        with suppress(KeyError), reproducible(7, 1):
            assert torch.equal(torch.rand(3), first)
            raise KeyError
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.initial_seed() == 5


def test_a_part_of_a_vector_is_sent_without_the_vector() -> None:
    vector = torch.arange(100_000.0)
    parts = {"master": vector[:8], "slots": [vector[:8], vector[8:16]]}
    sent = pickle.dumps(on_cpu(parts))
    assert len(sent) < 5_000
    there = pickle.loads(sent)
    assert torch.equal(there["slots"][1], vector[8:16])
    assert there["slots"][0] is there["master"]


def test_what_was_imported_is_not_looked_at_before_every_trial() -> None:
    imported: list[list[int]] = [[] for _ in range(2 * MANY_OBJECTS)]
    reset_peak_memory(torch.device("cpu"))
    assert len(gc.get_objects()) <= MANY_OBJECTS
    assert imported


@pytest.mark.parametrize("asked", ["1", "0"])
def test_ranks_share_a_gpu_where_nccl_takes_that(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", dict(os.environ))
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", asked)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "16")
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    own = [rank_device("cuda", rank, 2) for rank in range(2)]
    assert own == [torch.device("cuda:0"), torch.device("cuda:1")]
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "16", "the environment goes before"
    assert os.environ["CUDA_MODULE_LOADING"] == "EAGER"
    assert rank_device("cuda:1", 0, 1) == torch.device("cuda:1")
    if asked == "1":
        assert rank_device("cuda:1", 0, 2) == torch.device("cuda:1")
    else:
        with pytest.raises(BadInput, match="device=cuda:1: must be cuda, a GPU per rank"):
            rank_device("cuda:1", 0, 2)


OWN = {"cgroup": "1:name=systemd:/x\n0::/job/step\n"}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        (OWN | {"cpu.max": "300000 100000\n"}, 3),
        (OWN | {"job/cpu.max": "250000 100000\n", "job/step/cpu.max": "max 100000\n"}, 2),
        (OWN | {"job/step/cpu.max": "50000 100000\n"}, 1),
        (OWN | {"job/cpu.max": "1600000 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_the_smallest_limit_counts(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)})
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert num_cores(tmp_path, tmp_path / "cgroup") == cores
