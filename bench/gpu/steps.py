"""Work for a GPU on random tokens: updates by arm and optimizer beside transformers' step,
evaluations, and whole trials, in which checkpoints and records add to the updates."""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from subprocess import run
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.gpu.device import GPUSetting, prepare, timed
from bench.steps import executor, ours, resolved, theirs
from trainer.base.build import build
from trainer.data.bins import HEADER_BYTES, LAYOUTS

DELAY = ("pipeline=pipedream_2bw",)
EF = (*DELAY, "correction=error_feedback")
PLAIN = ("optimizer.fused=true", "deterministic=false")
"""Words of a plain loop, in which nobody asks for the same bits twice."""
STEPS: Mapping[str, tuple[Callable[..., Callable[[], None]], tuple[str, ...]]] = {
    "transformers, eager": (theirs, (*PLAIN, "compile=false")),
    "transformers, compiled": (theirs, PLAIN),
    "AdamW, sync, eager": (ours, ("compile=false",)),
    "AdamW, sync": (ours, ()),
    "AdamW, sync, nondeterministic": (ours, ("deterministic=false",)),
    "AdamW, sync, fused": (ours, ("optimizer.fused=true",)),
    "AdamW, delay": (ours, DELAY),
    "AdamW, delay + EF": (ours, EF),
    "AdamW, delay + EF, four stages": (ours, (*EF, "pipeline.num_stages=4")),
    "Muon, sync": (ours, ("optimizer=muon",)),
    "Muon, delay + EF": (ours, ("optimizer=muon", *EF)),
    "SOAP, delay + EF": (ours, ("optimizer=soap", *EF)),
}
"""What is timed → how it is made, and its words beside those of the scale."""
ALONE = ("pipeline.num_microbatches=1", "seq_len=8", "batch_size=1", "compile=false")
"""Words of a batch of eight tokens: a step is nearly the update alone."""
UPDATES: Mapping[str, tuple[str, ...]] = {
    "AdamW, sync": (),
    "AdamW, sync, fused": ("optimizer.fused=true",),
    "AdamW, delay": DELAY,
    "AdamW, delay + EF": EF,
    "Muon, sync": ("optimizer=muon",),
    "Muon, delay + EF": ("optimizer=muon", *EF),
    "SOAP, delay + EF": ("optimizer=soap", *EF),
}
EVALUATIONS: Mapping[str, tuple[str, ...]] = {
    "fp32": ("eval_dtype=float32",),
    "fp32, eager": ("eval_dtype=float32", "compile=false"),
    "bf16": ("eval_dtype=bfloat16",),
}
EVALUATED = 256
"""Windows of an evaluation."""
MAGIC = next(iter(LAYOUTS))

TRIAL_UPDATES, EVERY, WINDOWS = 40, 20, 64
"""Updates of a trial, updates between its evaluations and checkpoints, windows it evaluates."""
TRIALS = {
    "emulated": (),
    "emulated, once more": (),
    "pipelined, one rank": ("runner=pipelined", "trace=true"),
    "emulated, delay + EF, four stages": (
        *("pipeline=pipedream_2bw", "pipeline.num_stages=4", "correction=error_feedback"),
    ),
}


def whole(setting: GPUSetting, flops_per_second: float) -> list[dict[str, Any]]:
    """One row per step: seconds, tokens/s, share of the device's FLOP/s, peak memory."""
    ready = {
        name: prepare(partial(make, setting.words(*words)), setting.device)
        for name, (make, words) in STEPS.items()
    }
    config = resolved(setting.words())
    tokens = config["batch_size"] * config["seq_len"]
    flops = tokens * build(config["model"]).flops_per_token(config["seq_len"])
    return [
        {
            "step": name,
            "seconds": median(seconds),
            "least": min(seconds),
            "most": max(seconds),
            "first": ready[name].first,
            "busy": ready[name].busy,
            "peak_bytes": ready[name].peak,
            "tokens_per_second": tokens / median(seconds),
            "share_of_product": flops / median(seconds) / flops_per_second,
        }
        for name, seconds in timed(ready, setting.rounds, setting.device).items()
    ]


def updates(setting: GPUSetting) -> list[dict[str, Any]]:
    """One row per optimizer and arm: seconds of a step on eight tokens."""
    ready = {
        name: prepare(partial(ours, setting.words(*ALONE, *words)), setting.device)
        for name, words in UPDATES.items()
    }
    times = timed(ready, 3 * setting.rounds, setting.device)
    return [{"update": name, "seconds": median(seconds)} for name, seconds in times.items()]


def evaluation(setting: GPUSetting) -> list[dict[str, Any]]:
    """One row per way to evaluate: tokens/s."""
    config = resolved(setting.words())
    windows = _windows(config, setting).split(config["eval_batch_size"])
    tokens = EVALUATED * config["seq_len"]
    ready = {
        name: prepare(
            partial(_evaluating, setting.words(*words), windows),
            setting.device,
        )
        for name, words in EVALUATIONS.items()
    }
    times = timed(ready, setting.rounds, setting.device)
    return [
        {"evaluation": name, "tokens_per_second": tokens / median(seconds)}
        for name, seconds in times.items()
    ]


def _evaluating(words: Sequence[str], windows: Sequence[Tensor]) -> Callable[[], float]:
    return partial(executor(resolved(words)).evaluate, windows)


def _windows(config: Mapping[str, Any], setting: GPUSetting) -> Tensor:
    shape = (EVALUATED, config["seq_len"] + 1)
    return torch.randint(0, config["model"]["vocab_size"], shape, device=setting.device)


def trials(setting: GPUSetting) -> list[dict[str, Any]]:
    """One row per kind of trial: seconds of the process, tokens/s of its updates, sizes."""
    config = resolved(setting.words())
    with TemporaryDirectory() as folder:
        data = ("data=bins", f"data.path={_tokens(Path(folder), config)}")
        vocabulary = f"data.vocab_size={config['model']['vocab_size']}"
        length = (f"num_updates={TRIAL_UPDATES}", "tokens_per_parameter=null")
        often = (f"eval_every={EVERY}", f"checkpoint_every={EVERY}")
        return [
            {
                "trial": name,
                **_trial(
                    Path(folder) / str(number),
                    setting.words(*data, vocabulary, *length, *often, *more),
                ),
            }
            for number, (name, more) in enumerate(TRIALS.items())
        ]


def _trial(out: Path, words: list[str]) -> dict[str, Any]:
    started = time.perf_counter()
    run([sys.executable, "-m", "trainer", *words, f"out={out}"], check=True, capture_output=True)
    seconds = time.perf_counter() - started
    result = json.loads((out / "result.json").read_text())
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {
        "seconds": seconds,
        "wall_seconds": result["wall_seconds"],
        "first_update": rows[0]["wall_seconds"],
        "tokens_per_second": result["tokens_per_second"],
        "later_tokens_per_second": float(np.median([r["tokens_per_second"] for r in rows[3:]])),
        "peak_bytes": result["peak_memory_bytes"],
        "beside_updates": result["wall_seconds"] - result["tokens"] / result["tokens_per_second"],
        "final_val_loss": result["final_val_loss"],
        "bubble": result["bubble"],
    }


def _tokens(folder: Path, config: dict[str, Any]) -> Path:
    """A folder of random tokens in two `.bin` files, enough for the trials."""
    draw, size = np.random.default_rng(0), config["model"]["vocab_size"]
    windows = {"train": TRIAL_UPDATES * config["batch_size"], "val": WINDOWS}
    data = folder / "data"
    data.mkdir()
    for split, number in windows.items():
        tokens = draw.integers(0, size, number * config["seq_len"] + 1)
        header = np.zeros(HEADER_BYTES // 4, dtype="<i4")
        header[:3] = (*MAGIC, len(tokens))
        with (data / f"{split}.bin").open("wb") as file:
            file.write(header.tobytes() + tokens.astype(LAYOUTS[MAGIC]).tobytes())
    return data
