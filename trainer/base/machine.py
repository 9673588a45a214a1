"""What a machine offers a trial, as this process sees it: its device, memory, disk."""

import os
import shutil
import socket
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

COPIED = {"cuda": 2**30, "cpu": 2**26}
"""Bytes of a copy that is timed, by type of device."""
COPIES = 5


class Machine(NamedTuple):
    """What a process found; memory and disk in bytes.

    `free` and `total` are the memory of the device, `disk` is free where the store lies.
    """

    host: str
    torch: str
    cuda: str | None
    device: str
    free: int
    total: int
    disk: int


def look(device: torch.device, store: Path) -> Machine:
    """Looks at this machine and at one of its devices."""
    is_gpu = device.type == "cuda"
    free, total = _memory(device)
    return Machine(
        host=socket.gethostname(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        device=torch.cuda.get_device_name(device) if is_gpu else "the host's cores",
        free=free,
        total=total,
        disk=shutil.disk_usage(store).free,
    )


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
