"""A GPU as its clock and its memory see it, its ceilings, and work for it on random tokens, one
contender after the other: updates by arm and optimizer beside transformers' step, evaluations, and
an update beside what a fake GPU counted of it. On a CPU, for a dry run, all these say nothing."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile

from bench import timing
from bench.timing import Call
from pipegap.trainer.base.build import build
from pipegap.trainer.base.resources import copied_per_second, synchronize
from tests.support.fake_cuda.parts import PEAKS, in_two
from tests.support.steps import executor, ours, resolved, theirs, words_of_scale

WIDTHS = {"cuda": 8192, "cpu": 128}
"""Width of the square product that is timed, by type of device."""
Row = dict[str, Any]
"""What was measured of one thing: its `name`, and numbers."""


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
    its `launches`, kernels and copies, took in its third: what is left of a call the GPU waits for
    the host. 0 on a CPU. `graphs` and `breaks` are those of torch's compiler in these calls.
    """

    step: Call
    first: float
    peak: int
    busy: float
    launches: int
    graphs: int
    breaks: int


def prepare(make: Callable[[], Call], device: torch.device) -> ReadyCall:
    """Makes a step and calls it three times. What was made before is freed, if nobody holds it."""
    gc.collect()
    counters.clear()  # so that graphs and breaks are those of this step alone
    bytes_before = 0
    if device.type == "cuda":
        torch.cuda.empty_cache()
        bytes_before = torch.cuda.memory_allocated(device)
    return warmed(make(), device, bytes_before)


def warmed(step: Call, device: torch.device, bytes_before: int = 0) -> ReadyCall:
    """Calls a step three times; `bytes_before` were in use before it was made."""
    first = seconds_of(step, device)  # with compilation
    peak, busy, launches = 0, 0.0, 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    step()
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) - bytes_before
        busy, launches = _on_device(step, device)
    graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    return ReadyCall(step, first, peak, busy, launches, graphs, breaks)


def _on_device(step: Call, device: torch.device) -> tuple[float, int]:
    """Seconds and number of the GPU's kernels and copies in a call of a step."""
    # Not in a call that is timed: the profiler slows the host down.
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        step()
        synchronize(device)
    device_events = [event for event in profiled.key_averages() if event.self_device_time_total > 0]
    seconds = sum(event.self_device_time_total for event in device_events) / 1e6
    return seconds, sum(event.count for event in device_events)


def timed(step: Call, rounds: int, device: torch.device) -> list[float]:
    """Seconds of each of `rounds` calls."""
    return [seconds_of(step, device) for _ in range(rounds)]


def ceilings(setting: GPUSetting) -> Iterator[Row]:
    """FLOP/s of a square product in bf16, and bytes/s of a copy: read and written ones."""
    device = setting.device
    width = WIDTHS[device.type]
    first, right = (torch.randn(width, width, device=device).bfloat16() for _ in range(2))
    ready = warmed(lambda: [first @ right for _ in range(10)], device)
    seconds = median(timed(ready.step, 3 * setting.rounds, device))
    yield {
        "name": "a product of matrices in bf16, and a copy",
        "flops_per_second": 10 * 2 * width**3 / seconds,  # ten products, 2 n³ operations each
        "bytes_per_second": copied_per_second(device),
    }


DELAY = ("pipeline=pipedream_2bw",)
EF = (*DELAY, "correction=error_feedback")
PLAIN = ("optimizer.fused=true", "deterministic=false")
"""Words of a plain loop, in which nobody asks for the same bits twice."""
STEPS: Mapping[str, tuple[Callable[..., Callable[[], None]], tuple[str, ...]]] = {
    "AdamW, sync, eager": (ours, ("compile=false",)),
    "AdamW, sync": (ours, ()),
    "AdamW, sync, nondeterministic": (ours, ("deterministic=false",)),
    "AdamW, sync, fused": (ours, ("optimizer.fused=true",)),
    "AdamW, delay": (ours, DELAY),
    "AdamW, delay + EF": (ours, EF),
    "AdamW, delay + EF, four stages": (ours, (*EF, "pipeline.num_stages=4")),
    "AdamW, delay + EF, four microbatches": (ours, (*EF, "pipeline.num_microbatches=4")),
    "Muon, sync": (ours, ("optimizer=muon",)),
    "Muon, delay + EF": (ours, ("optimizer=muon", *EF)),
    "SOAP, delay + EF": (ours, ("optimizer=soap", *EF)),
    "transformers, eager": (theirs, (*PLAIN, "compile=false")),
    "transformers, compiled": (theirs, PLAIN),
    "a small mixture, delay + EF": (ours, ("model=tiny_moe", *EF)),
    "a small hybrid, delay + EF": (ours, ("model=tiny_hybrid", *EF)),
}
"""What is timed → how it is made, and its words beside those of the scale."""
EVALUATIONS: Mapping[str, tuple[str, ...]] = {
    "fp32": ("eval_dtype=float32",),
    "fp32, eager": ("eval_dtype=float32", "compile=false"),
    "bf16": ("eval_dtype=bfloat16",),
}
EVALUATED = 256
"""Windows of an evaluation."""


def whole(setting: GPUSetting, flops_per_second: float) -> Iterator[Row]:
    """Yields a row per step: seconds, tokens/s, share of the device's FLOP/s, peak, launches."""
    for name, (make, words) in STEPS.items():
        config = resolved(setting.words(*words))
        tokens = config["batch_size"] * config["seq_len"]
        flops = tokens * build(config["model"]).flops_per_token(config["seq_len"])
        ready = prepare(partial(make, setting.words(*words)), setting.device)
        seconds = timed(ready.step, setting.rounds, setting.device)
        yield {
            "name": name,
            "seconds": median(seconds),
            "least": min(seconds),
            "most": max(seconds),
            **{key: value for key, value in vars(ready).items() if key != "step"},
            "tokens_per_second": tokens / median(seconds),
            "share_of_product": flops / median(seconds) / flops_per_second,
        }
        del ready  # its memory, before the next one is made


def beside_fake(setting: GPUSetting) -> Iterator[Row]:
    """Yields the peak of an update, and the one recorded of a fake GPU (tests/fake_cuda)."""
    words = in_two(setting.scale, f"device={setting.device}", *setting.more)
    ready = prepare(partial(ours, words), setting.device)
    peak = None if setting.more else PEAKS.get(setting.scale)
    what = ", ".join((setting.scale, *(setting.more or ["AdamW"])))
    yield {
        "name": f"{what}, delay + EF, eager, two microbatches",
        "peak": ready.peak,
        "fake_peak": peak and 1e9 * peak,  # PEAKS are in GB
    }


def evaluation(setting: GPUSetting) -> Iterator[Row]:
    """Yields a row per way to evaluate: tokens/s."""
    config = resolved(setting.words())
    windows = _windows(config, setting).split(config["eval_batch_size"])
    tokens = EVALUATED * config["seq_len"]
    for name, words in EVALUATIONS.items():
        ready = prepare(partial(_evaluating, setting.words(*words), windows), setting.device)
        seconds = median(timed(ready.step, setting.rounds, setting.device))
        yield {"name": name, "tokens_per_second": tokens / seconds}
        del ready


def _evaluating(words: Sequence[str], windows: Sequence[Tensor]) -> Callable[[], float]:
    return partial(executor(resolved(words)).evaluate, windows)


def _windows(config: Mapping[str, Any], setting: GPUSetting) -> Tensor:
    shape = (EVALUATED, config["seq_len"] + 1)
    return torch.randint(0, config["model"]["vocab_size"], shape, device=setting.device)
