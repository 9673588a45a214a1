"""Cores are counted by affinity and by the quota of a container."""

import os
from pathlib import Path

import pytest

from pipegap.trainer.base.children import num_cores

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
