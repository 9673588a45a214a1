"""A GPU as its clock and its memory see it, and its ceilings. On a CPU, for a dry run, they say
nothing."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile

from bench import timing
from bench.steps import words_of_scale
from bench.timing import Call, in_turn

WIDTH = 8192
BYTES = 4 * 2**30
ON_A_CPU = 64
"""How many times narrower the product and smaller the copy are in a dry run."""


@dataclass(frozen=True)
class GPUSetting:
    """The words of a trial at `scale`, on `device`; every time is a median of `rounds`."""

    scale: str
    device: torch.device
    rounds: int
    more: tuple[str, ...] = ()
    """Words that every trial gets, after those of the scale."""

    def words(self, *words: str) -> list[str]:
        """The words of the scale, then `words`; later ones win."""
        return words_of_scale(self.scale, f"device={self.device}", *self.more, *words)


def synchronize(device: torch.device) -> None:
    """Waits until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(run: Call, device: torch.device) -> float:
    """Seconds from an idle device to an idle device."""
    synchronize(device)

    def whole() -> None:
        run()
        synchronize(device)

    return timing.seconds_of(whole)


@dataclass(frozen=True)
class ReadyCall:
    """A step that is ready to be timed.

    `first` are the seconds of its first call, compilation included. `peak` is the most memory in
    bytes that it held in its second, its weights and states included. `busy` are the seconds that
    kernels took in its third: what is left of a call the GPU waits for the host. 0 on a CPU.
    """

    step: Call
    first: float
    peak: int
    busy: float


def prepare(make: Callable[[], Call], device: torch.device) -> ReadyCall:
    """Makes a step and calls it three times."""
    gc.collect()
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    return warmed(make(), device, before)


def warmed(step: Call, device: torch.device, before: int = 0) -> ReadyCall:
    """Calls a step three times; `before` are the bytes that were in use before it was made."""
    first = seconds_of(step, device)
    if device.type != "cuda":
        step()
        return ReadyCall(step, first, 0, 0.0)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    peak = torch.cuda.max_memory_allocated(device) - before
    return ReadyCall(step, first, peak, _busy(step, device))


def _busy(step: Call, device: torch.device) -> float:
    """Seconds of the GPU's kernels and copies in a call of a step."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        step()
        synchronize(device)
    return sum(event.self_device_time_total for event in profiled.key_averages()) / 1e6


def timed(
    contenders: Mapping[str, ReadyCall], rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of every call, by contender, in turn."""
    steps = {name: contender.step for name, contender in contenders.items()}
    return in_turn(steps, rounds, lambda step: seconds_of(step, device))


def ceilings(setting: GPUSetting) -> dict[str, float]:
    """FLOP/s of a square product in bf16, and bytes/s of a copy: read and written ones."""
    shrink = 1 if setting.device.type == "cuda" else ON_A_CPU
    width, size = WIDTH // shrink, BYTES // shrink**2
    left, right = (
        torch.randn(width, width, device=setting.device, dtype=torch.bfloat16) for _ in range(2)
    )
    source = torch.randint(0, 255, (size,), device=setting.device, dtype=torch.uint8)
    target = torch.empty_like(source)
    steps = {
        "product": lambda: [left @ right for _ in range(10)],
        "copy": lambda: [target.copy_(source) for _ in range(10)],
    }
    ready = {name: warmed(step, setting.device) for name, step in steps.items()}
    times = timed(ready, 3 * setting.rounds, setting.device)
    seconds = {name: median(calls) for name, calls in times.items()}
    return {
        "flops_per_second": 10 * 2 * width**3 / seconds["product"],
        "bytes_per_second": 10 * 2 * size / seconds["copy"],
    }
