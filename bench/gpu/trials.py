"""Whole trials on random tokens: what evaluation, checkpoints and records add to the updates."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from subprocess import run
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.gpu.device import GPUSetting
from bench.steps import resolved
from trainer.data.bins import HEADER_BYTES, LAYOUTS

MAGIC = next(iter(LAYOUTS))

UPDATES, EVERY, WINDOWS = 40, 20, 64
"""Updates of a trial, updates between its evaluations and checkpoints, windows it evaluates."""
TRIALS = {
    "emulated": (),
    "emulated, once more": (),
    "pipelined, one rank": ("runner=pipelined", "trace=true"),
    "emulated, delay + EF, four stages": (
        *("pipeline=pipedream_2bw", "pipeline.num_stages=4", "correction=error_feedback"),
    ),
}


def trials(setting: GPUSetting) -> list[dict[str, Any]]:
    """One row per kind of trial: seconds of the process, tokens/s of its updates, sizes."""
    config = resolved(setting.words())
    with TemporaryDirectory() as folder:
        data = ("data=bins", f"data.path={_tokens(Path(folder), config)}")
        vocabulary = f"data.vocab_size={config['model']['vocab_size']}"
        length = (f"num_updates={UPDATES}", "tokens_per_parameter=null")
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
    windows = {"train": UPDATES * config["batch_size"], "val": WINDOWS}
    data = folder / "data"
    data.mkdir()
    for split, number in windows.items():
        tokens = draw.integers(0, size, number * config["seq_len"] + 1)
        header = np.zeros(HEADER_BYTES // 4, dtype="<i4")
        header[:3] = (*MAGIC, len(tokens))
        with (data / f"{split}.bin").open("wb") as file:
            file.write(header.tobytes() + tokens.astype(LAYOUTS[MAGIC]).tobytes())
    return data
