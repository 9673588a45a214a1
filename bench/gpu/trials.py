"""Whole trials on a GPU, on random tokens: first updates with a stop and a resume, checkpoints, and
trials whose records and checkpoints add to the updates."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import run
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.gpu.device import GPUSetting, Row
from bench.gpu.steps import EF
from pipegap.trainer import rehearsal
from pipegap.trainer.base.machine import synchronize
from pipegap.trainer.config.compose import compose
from pipegap.trainer.data.bins import HEADER_BYTES, LAYOUTS
from pipegap.trainer.folder import checkpoint
from tests.support.steps import executor, resolved

MAGIC = next(iter(LAYOUTS))
TRIAL_UPDATES, EVERY, WINDOWS = 24, 12, 64
"""Updates of a trial, updates between its evaluations and checkpoints, windows it evaluates."""
TRIALS: Mapping[str, Sequence[str]] = {
    "emulated": (),
    "pipelined, one rank": ("runner=pipelined", "trace=true"),
    "emulated, delay + EF, four stages": (*EF, "pipeline.num_stages=4"),
}
REHEARSED: Mapping[str, Sequence[str]] = {
    "AdamW, delay + EF": EF,
    "Muon, delay + EF": ("optimizer=muon", *EF),
    "SOAP, delay + EF": ("optimizer=soap", *EF),
    "one rank": ("runner=pipelined",),
    "a small mixture, delay + EF": ("model=tiny_moe", *EF),
    "a small hybrid, delay + EF": ("model=tiny_hybrid", *EF),
}


@contextmanager
def _data(setting: GPUSetting) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yields a folder, and the words of a trial on random tokens in it."""
    config = resolved(setting.words())
    size = config["model"]["vocab_size"]
    with TemporaryDirectory() as name:
        path = _tokens(Path(name), config)
        words = ("data=bins", f"data.path={path}", f"data.vocab_size={size}")
        yield Path(name), (*words, f"model.vocab_size={size}")


def rehearsals(setting: GPUSetting) -> Iterator[Row]:
    """Yields a row per kind of trial: whether a stop and a resume change a bit, and seconds."""
    with _data(setting) as (folder, data):
        for number, (name, more) in enumerate(REHEARSED.items()):
            started = time.perf_counter()
            config = compose(setting.words(*data, *more))
            out = folder / f"rehearsal-{number}"
            rehearsal.begin(config, out)
            ended = rehearsal.resume(config, out)
            yield {"name": name, **ended._asdict(), "seconds": time.perf_counter() - started}


def checkpoints(setting: GPUSetting) -> Iterator[Row]:
    """Yields the seconds of a checkpoint by part, of AdamW with a delay and Error Feedback."""
    trained = executor(resolved(setting.words(*EF)))
    trained.run(0, 1, lambda update: None)
    seconds, last = {}, _now(setting)
    copy = checkpoint.copied(trained.state())
    seconds["copy"], last = _now(setting) - last, _now(setting)
    with TemporaryDirectory() as name:
        checkpoint.save(Path(name), 1, {"executor": copy}, 1)
        [written] = checkpoint.newest_first(Path(name))
        num_bytes = written.path.stat().st_size
        seconds["write"], last = _now(setting) - last, _now(setting)
        state = checkpoint.load(written.path)
        seconds["read"], last = _now(setting) - last, _now(setting)
        trained.restore(state["executor"])
        seconds["restore"] = _now(setting) - last
    yield {"name": "AdamW, delay + EF", "bytes": num_bytes, **seconds}


def _now(setting: GPUSetting) -> float:
    synchronize(setting.device)
    return time.perf_counter()


def trials(setting: GPUSetting) -> Iterator[Row]:
    """Yields a row per kind of trial: seconds of the process, tokens/s of its updates, sizes."""
    with _data(setting) as (folder, data):
        length = (f"num_updates={TRIAL_UPDATES}", "tokens_per_parameter=null")
        often = (f"eval_every={EVERY}", f"checkpoint_every={EVERY}")
        for number, (name, more) in enumerate(TRIALS.items()):
            words = setting.words(*data, *length, *often, *more)
            yield {"name": name, **_trial(folder / str(number), words)}


def _trial(out: Path, words: list[str]) -> dict[str, Any]:
    started = time.perf_counter()
    command = [sys.executable, "-m", "pipegap", "trial", *words, f"out={out}"]
    ended = run(command, capture_output=True, check=False, text=True)
    if ended.returncode:
        raise RuntimeError(ended.stderr.strip().splitlines()[-1])
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
