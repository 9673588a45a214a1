"""The GPU as its clock and its memory see it. On a CPU, for a dry run, the same calls."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from bench import timing
from bench.timing import Step, in_turn


def synchronize(device: torch.device) -> None:
    """Waits until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(run: Step, device: torch.device) -> float:
    """Seconds from an idle device to an idle device."""
    synchronize(device)

    def whole() -> None:
        run()
        synchronize(device)

    return timing.seconds_of(whole)


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


def timed(
    contenders: Mapping[str, Contender], rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of every call, by contender, in turn."""
    steps = {name: contender.step for name, contender in contenders.items()}
    return in_turn(steps, rounds, lambda step: seconds_of(step, device))
