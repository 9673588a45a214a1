"""A trial's executor on a fake GPU: what `trainer.trial` does, without a folder and data."""

import traceback
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipegap.trainer.base.resources import on_cpu, reproducible
from pipegap.trainer.config.work import peak_bytes
from pipegap.trainer.executors.emulated import Emulated
from tests.support.fake_cuda.gpu import FakeGPU
from tests.support.steps import UPDATES, executor, resolved

Facts = dict[str, Any]


def looked_at(words: Sequence[str], updates: int, whole: bool) -> Facts:
    """What `updates` updates of a trial with these `words` do on a GPU: see `facts_of`.

    A `whole` trial also evaluates, compares an update with its fresh one, and restores a
    checkpoint.
    """
    gpu = FakeGPU()
    config = resolved([*words, "device=cuda"])
    error = None
    try:
        with gpu, reproducible(0, 1, config["deterministic"]):
            _run(gpu, config, executor(config), updates, whole)
    except Exception:
        error = traceback.format_exc()
    return {"error": error, "planned": peak_bytes(config, UPDATES), **facts_of(gpu)}


def facts_of(gpu: FakeGPU) -> Facts:
    """What the GPU saw, by part of the run, as plain data."""
    gpu.begin("")
    waits: dict[str, Facts] = {}
    for (part, why), number in gpu.waits.items():
        waits.setdefault(part, {})[why] = number
    by_part: dict[str, Counter[str]] = {}
    for (part, doing), number in gpu.launches.items():
        by_part.setdefault(part, Counter())[doing] += number
    return {
        "waits": waits,
        "by_part": by_part,
        "peaks": gpu.peaks,
        "mixed": dict(gpu.mixed),
        "refused": dict(gpu.refused),
    }


def _run(gpu: FakeGPU, config: Facts, executor: Emulated, updates: int, whole: bool) -> None:
    for t in range(updates):
        gpu.begin(f"update {t}")
        executor.run(t, t + 1, lambda update: None)
    if not whole:
        return
    gpu.begin("evaluation")
    executor.evaluate([_windows(config).to("cuda")])
    gpu.begin("comparison")
    executor.probe(updates)
    executor.run(updates, updates + 1, lambda update: None)
    executor.take_comparison()
    gpu.begin("checkpoint")
    executor.weights()
    executor.restore(on_cpu(executor.state()))  # as a file is read
    gpu.begin("update after it")
    executor.run(updates + 1, updates + 2, lambda update: None)


def _windows(config: Facts) -> Tensor:
    shape = min(config["eval_batch_size"], 32), config["seq_len"] + 1
    return torch.randint(0, config["model"]["vocab_size"], shape)
