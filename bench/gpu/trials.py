"""Whole trials on a GPU, on random tokens: first updates with a stop and a resume, checkpoints, and
trials whose records and checkpoints add to the updates; and what two ranks do: messages, drains,
and how soon a killed peer is noticed."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from subprocess import run
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from bench.gpu.device import EF, GPUSetting, Row
from pipegap.trainer import rehearsal
from pipegap.trainer.base.errors import GangFailed
from pipegap.trainer.base.resources import ranks_may_share_a_gpu, synchronize
from pipegap.trainer.config.compose import compose
from pipegap.trainer.data.bins import HEADER_BYTES, LAYOUTS
from pipegap.trainer.folder import record
from pipegap.trainer.ranks.groups import Edge, Gang
from tests.support.gangs import IN_A_ROW, Send, on_ranks, ours
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
            result = rehearsal.resume(config, out)
            yield {"name": name, **result._asdict(), "seconds": time.perf_counter() - started}


def checkpoints(setting: GPUSetting) -> Iterator[Row]:
    """Yields the seconds of a checkpoint by part, of AdamW with a delay and Error Feedback."""
    trained = executor(resolved(setting.words(*EF)))
    trained.run(0, 1, lambda update: None)  # so that the optimizer has states
    seconds: dict[str, float] = {}

    def timed(part: str, call: Callable[[], Any]) -> Any:
        synchronize(setting.device)
        started = time.perf_counter()
        outcome = call()
        synchronize(setting.device)
        seconds[part] = time.perf_counter() - started
        return outcome

    copy = timed("copy", lambda: record.copied(trained.state()))
    with TemporaryDirectory() as name:
        timed("write", lambda: record.save(Path(name), 1, {"executor": copy}, 1))
        [newest] = record.newest_first(Path(name))
        state = timed("read", lambda: record.load(newest.path))
        timed("restore", lambda: trained.restore(state["executor"]))
        num_bytes = newest.path.stat().st_size
    yield {"name": "AdamW, delay + EF", "bytes": num_bytes, **seconds}


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
    process = run(command, capture_output=True, check=False, text=True)
    if process.returncode:
        raise RuntimeError(process.stderr.strip().splitlines()[-1])
    seconds = time.perf_counter() - started
    result = json.loads((out / "result.json").read_text())
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {
        "seconds": seconds,
        "wall_seconds": result["wall_seconds"],
        "first_update": rows[0]["wall_seconds"],
        "tokens_per_second": result["tokens_per_second"],
        # The first rows have what is compiled and allocated once.
        "later_tokens_per_second": float(np.median([r["tokens_per_second"] for r in rows[3:]])),
        "peak_bytes": result["peak_memory_bytes"],
        # Records, checkpoints, evaluations: seconds beyond those that the updates took.
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
        # The layout of llm.c: a magic number, a version, the number of tokens, then the tokens.
        header = np.zeros(HEADER_BYTES // 4, dtype="<i4")
        header[:3] = (*MAGIC, len(tokens))
        with (data / f"{split}.bin").open("wb") as file:
            file.write(header.tobytes() + tokens.astype(LAYOUTS[MAGIC]).tobytes())
    return data


MESSAGES = {"cuda": (4, 2**16, 2**26), "cpu": (4, 2**16)}
"""Bytes of the messages that are timed, by type of device."""
ROUNDS, MICROBATCHES = 20, 2


def pair(setting: GPUSetting) -> Iterator[Row]:
    """Yields a row per thing that two ranks do; one that says why not where there is no pair."""
    device = kind = setting.device.type
    if kind == "cuda" and (number := torch.cuda.device_count()) < 2:
        if not ranks_may_share_a_gpu():
            yield {"name": "two ranks", "said": f"skipped: takes two GPUs, {number} is there"}
            return
        device = "cuda:0"
        yield {"name": "two ranks", "said": "share one GPU and take turns: no time says anything"}
    rows: list[Row] = []
    on_ranks(_messages, (MESSAGES[kind],), rows.append, device=device)
    yield from rows
    drains: list[Row] = []
    on_ranks(_drains, (setting.rounds,), drains.append, device=device)
    yield from drains
    yield _killed(device)


def _messages(gang: Gang, send: Send, sizes: tuple[int, ...]) -> None:
    """Sends the seconds of a message there and back, halved, by its size."""
    forth, back = Edge("bench", 0, 1), Edge("bench", 1, 0)
    groups = gang.connect([forth, back])
    for size in sizes:
        message = torch.zeros(size, dtype=torch.uint8, device=gang.device)
        seconds = []
        for _ in range(ROUNDS):
            synchronize(gang.device)
            started = time.perf_counter()
            for edge in (forth, back):
                # One rank sends and the other receives, then the other way round.
                move = dist.isend if edge.source == gang.place else dist.irecv
                peer = edge.target if edge.source == gang.place else edge.source
                work = move(message, peer, group=groups[edge])
                assert work is not None
                gang.wait(work)
            synchronize(gang.device)
            seconds.append((time.perf_counter() - started) / 2)
        if gang.records:
            middle = median(seconds)
            rate = {"bytes_per_second": size / middle}
            send({"name": f"a message of {size:,} bytes", "seconds": middle, **rate})


def _drains(gang: Gang, send: Send, rounds: int) -> None:
    """Sends the seconds of an update of 2BW from drain to drain, and of one without a drain."""
    run = ours(gang, MICROBATCHES, "pipedream_2bw", f"device={gang.device.type}")
    once = ours(gang, MICROBATCHES, "pipedream_2bw", f"device={gang.device.type}", updates=1)
    num_updates = IN_A_ROW // MICROBATCHES
    for name, call, number in (
        (f"an update of {num_updates} in a row", run, num_updates),
        ("an update with a drain", once, 1),
    ):
        seconds = []
        for _ in range(rounds + 1):
            gang.heartbeat.beat()
            gang.barrier()
            started = time.perf_counter()
            call()
            synchronize(gang.device)
            gang.barrier()
            seconds.append((time.perf_counter() - started) / number)
        if gang.records:
            send({"name": name, "seconds": median(seconds[1:])})  # the first one warms up


def _killed(device: str) -> Row:
    """The seconds from the end of a killed rank to the error that names it."""
    dying: list[float] = []
    try:
        on_ranks(_dies, (), dying.append, device=device)
    except GangFailed as error:
        seconds = time.monotonic() - dying[0]
        return {"name": f"a killed peer: {str(error).splitlines()[0]}", "seconds": seconds}
    raise AssertionError("nobody noticed that rank 1 was killed")


def _dies(gang: Gang, send: Send) -> None:
    gang.barrier()
    if gang.place == 1:
        send(time.monotonic())  # one clock for all processes of a machine
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    gang.barrier()
