"""What a machine offers a trial, as this process sees it: GPUs, memory, bandwidth, disks."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

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
QUERY = ("nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader")
ANSWER_WITHIN = 30.0
"""Seconds that the driver has to say which GPUs there are."""


class Machine(NamedTuple):
    """What a process found. Memory and disks are in bytes.

    `gpus` are the names of all GPUs that the driver has, of which a process may see few. `free` and
    `total` are the memory of the device, `bytes_per_second` what a copy reads and writes there.
    `shared` is free in /dev/shm, None where there is none; `disk` is free where the store lies.
    """

    host: str
    torch: str
    cuda: str | None
    driver: str | None
    gpus: Sequence[str]
    free: int
    total: int
    bytes_per_second: float
    variables: dict[str, str]
    interfaces: Sequence[str]
    shared: int | None
    disk: int


def look(device: torch.device, store: Path) -> Machine:
    """Looks at this machine and at one of its devices; takes some seconds."""
    driver, gpus = _driver()
    free, total = _memory(device)
    return Machine(
        host=socket.gethostname(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        driver=driver,
        gpus=gpus,
        free=free,
        total=total,
        bytes_per_second=copied_per_second(device),
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        interfaces=[name for _, name in socket.if_nameindex()],
        shared=shutil.disk_usage(SHARED).free if SHARED.is_dir() else None,
        disk=shutil.disk_usage(store).free,
    )


def _driver() -> tuple[str | None, list[str]]:
    """The version of NVIDIA's driver and the names of its GPUs; None and none without a driver."""
    try:
        asked = subprocess.run(
            QUERY, check=True, capture_output=True, text=True, timeout=ANSWER_WITHIN
        )
    except (OSError, subprocess.SubprocessError):
        return None, []
    rows = [line.partition(", ") for line in asked.stdout.splitlines() if ", " in line]
    return (rows[0][0], [name for _, _, name in rows]) if rows else (None, [])


def _memory(device: torch.device) -> tuple[int, int]:
    """Free and all bytes of the device's memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page


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
