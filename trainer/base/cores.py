"""What the processors of this machine offer: how many cores this process may use, and the dtype in
which their products are fast."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
BF16_PRODUCTS = ("avx512_bf16", "amx_bf16")
"""Instructions of processors, by torch's names, with which its products in bfloat16 are faster."""


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


def resolved_dtype(name: str, device: str, *, has_experts: bool) -> str:
    """Returns the dtype `name`, or for auto the dtype of the fastest products.

    They are in bfloat16 on a GPU, and on a CPU that has instructions for bfloat16. On other CPUs
    bfloat16 is slower than float32. So it is for experts on any CPU, because torch compiles a
    product for each number of tokens that an expert gets.
    """
    if name != "auto":
        return name
    if device != "cpu":
        return "bfloat16"
    if has_experts:
        return "float32"
    import torch  # slow, and a command that only reads a store asks for no dtype

    has: Mapping[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # of newer torch
    return "bfloat16" if any(has.get(name) for name in BF16_PRODUCTS) else "float32"
