"""How many cores this process may use: everything that counts cores asks here."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")


def num_cores(groups: Path = GROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """The cores of the process's affinity (taskset, Slurm), or fewer by a quota of a container.

    A quota of less than a core counts as one. `groups` is Linux' tree of control groups, `own`
    names the process's place in it.
    """
    return max(1, min([len(os.sched_getaffinity(0)), *_quotas(groups, own)]))


def _quotas(groups: Path, own: Path) -> Iterator[int]:
    """The quotas, in whole cores, of the process's group and of all above it."""
    with suppress(OSError, ValueError):  # version 1
        folder = groups / "cpu"
        quota, period = (
            int((folder / f"cpu.cfs_{name}_us").read_text("utf-8")) for name in ("quota", "period")
        )
        if quota > 0:
            yield quota // period
    with suppress(OSError):
        for line in own.read_text("utf-8").splitlines():
            group = groups / line.removeprefix("0::/")
            for folder in (group, *group.parents) if line.startswith("0::/") else ():
                with suppress(OSError, ValueError):  # there is none, or it is `max`
                    limit, length = map(int, (folder / "cpu.max").read_text("utf-8").split())
                    yield limit // length
