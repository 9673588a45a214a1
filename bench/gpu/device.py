"""The GPU as its clock and its memory see it. On a CPU, for a dry run, the same calls."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch


def synchronize(device: torch.device) -> None:
    """Waits until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Seconds from an idle device to an idle device."""
    synchronize(device)
    started = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - started


@dataclass(frozen=True)
class Contender:
    """A step that is ready to be timed.

    `first` are the seconds of its first call, compilation included. `peak` is the most memory in
    bytes that it held in its second, its weights and states included; 0 on a CPU.
    """

    step: Callable[[], object]
    first: float
    peak: int


def prepare(make: Callable[[], Callable[[], object]], device: torch.device) -> Contender:
    """Makes a step and calls it twice."""
    gc.collect()
    on_gpu = device.type == "cuda"
    before = torch.cuda.memory_allocated(device) if on_gpu else 0
    step = make()
    first = seconds_of(step, device)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    step()
    peak = torch.cuda.max_memory_allocated(device) - before if on_gpu else 0
    return Contender(step, first, peak)


def in_turn(
    contenders: Mapping[str, Contender], rounds: int, device: torch.device
) -> dict[str, Sequence[float]]:
    """Seconds of every call, by contender: `rounds` rounds, in each of which all have a turn."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds):
        order = list(contenders)
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            seconds[name].append(seconds_of(contenders[name].step, device))
    return dict(seconds)


def medians(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each."""
    return {name: median(of) for name, of in seconds.items()}
