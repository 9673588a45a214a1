"""The GPU as its clock and its memory see it. On a CPU, for a dry run, the same calls."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile

Step = Callable[[], object]


def synchronize(device: torch.device) -> None:
    """Waits until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(run: Step, device: torch.device) -> float:
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
    bytes that it held in its second, its weights and states included. `busy` are the seconds that
    kernels took in its third: what is left of a call the GPU waits for the host. 0 on a CPU.
    """

    step: Step
    first: float
    peak: int
    busy: float


def prepare(make: Callable[[], Step], device: torch.device) -> Contender:
    """Makes a step and calls it three times."""
    gc.collect()
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    return warmed(make(), device, before)


def warmed(step: Step, device: torch.device, before: int = 0) -> Contender:
    """Calls a step three times; `before` are the bytes that were in use before it was made."""
    first = seconds_of(step, device)
    if device.type != "cuda":
        step()
        return Contender(step, first, 0, 0.0)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    peak = torch.cuda.max_memory_allocated(device) - before
    return Contender(step, first, peak, _busy(step, device))


def _busy(step: Step, device: torch.device) -> float:
    """Seconds of the GPU's kernels and copies in a call of a step."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        step()
        synchronize(device)
    return sum(event.self_device_time_total for event in found.key_averages()) / 1e6


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
