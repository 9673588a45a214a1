"""The process that a trial runs in: device, threads, determinism, memory."""

from __future__ import annotations

import gc
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from trainer.errors import BadInput


def require_device(name: str) -> torch.device:
    """The device of that name; raises BadInput where this machine has no such one."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise BadInput("device", name, "must be cpu, cuda or cuda:N")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BadInput(
            "device", name, "no such GPU is visible to torch here: use a GPU machine or device=cpu"
        )
    return device


def rank_device(name: str, local_rank: int) -> torch.device:
    """The device of one of several processes on this machine: with `cuda`, each has its own GPU."""
    return require_device(f"cuda:{local_rank}" if name == "cuda" else name)


def device_name(device: torch.device) -> str:
    """What people call the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


@contextmanager
def reproducible(seed: int, num_threads: int) -> Iterator[None]:
    """Same seed, same numbers, bitwise on one machine; restores the process's settings."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    threads = torch.get_num_threads()
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(was_deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def reset_peak_memory(device: torch.device) -> None:
    """Starts a new count of the peak: a process may run several trials, one after the other."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):  # not on this system: the count is the process's then
            Path("/proc/self/clear_refs").write_text("5")


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory since the last reset: allocated on a GPU, resident on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        status = Path("/proc/self/status").read_text()
        if found := re.search(r"VmHWM:\s+(\d+) kB", status):
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """State of the global generators that an optimizer may draw from."""
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def restore_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    """Takes back what `random_state` gave."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
