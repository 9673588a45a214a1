"""Work for a GPU on random tokens, one contender after the other: updates by arm and optimizer
beside transformers' step, evaluations, and an update beside what a fake GPU counted of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from bench.gpu.device import GPUSetting, Row, prepare, timed
from pipegap.trainer.base.build import build
from tests.support.fake_cuda.parts import PEAKS, in_two
from tests.support.steps import executor, ours, resolved, theirs

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
    known = None if setting.more else PEAKS.get(setting.scale)
    what = ", ".join((setting.scale, *(setting.more or ["AdamW"])))
    yield {
        "name": f"{what}, delay + EF, eager, two microbatches",
        "peak": ready.peak,
        "fake_peak": known and 1e9 * known,
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
