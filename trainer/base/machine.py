"""What a machine offers a trial, as this process sees it: GPUs, memory, bandwidth, disks."""

import os
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from pipegap.trainer.base import nvidia
from pipegap.trainer.base.nvidia import Clocks

COPIED = {"cuda": 2**30, "cpu": 2**26}
"""Bytes of a copy that is timed, by type of device."""
COPIES = 5
VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING"),
    *("CUBLAS_WORKSPACE_CONFIG", "PYTORCH_CUDA_ALLOC_CONF", "NCCL_SOCKET_IFNAME"),
    *("NCCL_P2P_DISABLE", "GLOO_SOCKET_IFNAME", "TORCHINDUCTOR_COMPILE_THREADS"),
)
"""Variables that change how fast a trial runs, or whether its ranks find each other."""
SHARED = Path("/dev/shm")
MEMORY, LIMITS = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


class Machine(NamedTuple):
    """What a process found. Memory and disks are in bytes.

    `gpus` are the names of all GPUs that the driver has, of which a process may see few, and
    `links` counts their pairs by how they are linked. `free` and `total` are the memory of the
    device, `host_free` that of the host, `bytes_per_second` what a copy reads and writes on the
    device, `clocks` its clocks right after the copy. `shared` is free in /dev/shm, None where there
    is none; `disk` is free where the store lies.
    """

    host: str
    torch: str
    cuda: str | None
    driver: str | None
    gpus: Sequence[str]
    links: Mapping[str, int]
    free: int
    total: int
    host_free: int
    bytes_per_second: float
    clocks: Clocks | None
    variables: dict[str, str]
    interfaces: Sequence[str]
    shared: int | None
    disk: int


def look(device: torch.device, store: Path) -> Machine:
    """Looks at this machine and at one of its devices; takes some seconds."""
    driver, gpus = nvidia.driver()
    free, total = _memory(device)
    return Machine(
        host=socket.gethostname(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        driver=driver,
        gpus=gpus,
        links=nvidia.links(),
        free=free,
        total=total,
        host_free=_host_free(),
        bytes_per_second=copied_per_second(device),
        clocks=_clocks(device),
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        interfaces=[name for _, name in socket.if_nameindex()],
        shared=shutil.disk_usage(SHARED).free if SHARED.is_dir() else None,
        disk=shutil.disk_usage(store).free,
    )


def _clocks(device: torch.device) -> Clocks | None:
    """The clocks of a GPU; None of a CPU, or if nobody tells."""
    if device.type != "cuda":
        return None
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return nvidia.clocks(f"GPU-{uuid.removeprefix('GPU-')}")


def _memory(device: torch.device) -> tuple[int, int]:
    """Free and all bytes of the device's memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


def _host_free() -> int:
    """Bytes of the host's memory that this process and those beside it can still take, by the
    kernel and by the limit of the container, if there is one."""
    free = _named(MEMORY)["MemAvailable"] * 1024
    try:
        limit, used = (
            int((LIMITS / name).read_text()) for name in ("memory.max", "memory.current")
        )
    except (OSError, ValueError):  # "max": there is no limit
        return free
    # Files that were read count as used, and are dropped when memory is short.
    return min(free, limit - used + _named(LIMITS / "memory.stat")["inactive_file"])


def _named(path: Path) -> dict[str, int]:
    """The numbers of a file of the kernel by their names."""
    rows = (line.replace(":", "").split() for line in path.read_text().splitlines())
    return {name: int(number) for name, number, *_ in rows}


def synchronize(device: torch.device) -> None:
    """Waits until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def copied_per_second(device: torch.device) -> float:
    """Bytes per second of a copy in the device's memory, read and written ones: a median."""
    source = torch.ones(COPIED[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(COPIES + 1):
        synchronize(device)
        started = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        seconds.append(time.perf_counter() - started)
    return 2 * source.numel() / median(seconds[1:])  # the first copy touches the memory
