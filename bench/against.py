"""The parts of an update here and in another checkout, in turn: CPU time of one core.

    python -m bench.against CHECKOUT [scale=tiny] [rounds=12]

The two checkouts run in a process each, with the Python of this one.
"""

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench.steps import ours, words_of_scale
from bench.timing import table

AT_ONCE = 10
LATE = ("pipeline=pipedream_2bw", "correction=error_feedback")
OPTIMIZERS = ("adamw", "muon", "soap")
PARTS = {
    "optimizer": ("trainer.stages.update", "step"),
    "error feedback": ("trainer.corrections.error_feedback:ErrorFeedback", "apply"),
    "copy to the next version": ("trainer.stages.versions:Versions", "open"),
    "sum over microbatches": ("trainer.stages.stage:Stage", "backward_weights"),
}
"""Part of an update → the function that is it."""


Seconds = dict[str, float]


def _timed(function: Callable[..., Any], part: str, seconds: Seconds) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        started = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            seconds[part] += time.process_time() - started

    return run


def _serve(scale: str) -> None:
    """For each optimizer that a line names, prints the seconds of `AT_ONCE` updates, by part."""
    torch.set_num_threads(1)
    seconds: Seconds = defaultdict(float)
    for part, (place, name) in PARTS.items():
        module, _, owner = place.partition(":")
        home = import_module(module)
        home = getattr(home, owner) if owner else home
        setattr(home, name, _timed(getattr(home, name), part, seconds))
    runs: dict[str, Callable[[], None]] = {}
    for optimizer in map(str.strip, sys.stdin):
        if optimizer not in runs:
            words = words_of_scale(scale, f"optimizer={optimizer}", "dtype=float32", *LATE)
            runs[optimizer] = _timed(ours(words, AT_ONCE), "whole update", seconds)
        seconds.clear()
        runs[optimizer]()
        print(json.dumps(seconds), flush=True)


def _asked(process: "subprocess.Popen[str]", optimizer: str) -> Mapping[str, float]:
    assert process.stdin is not None
    assert process.stdout is not None
    print(optimizer, file=process.stdin, flush=True)
    answer: Mapping[str, float] = json.loads(process.stdout.readline())
    return answer


def main() -> None:
    """Prints a table per optimizer."""
    other, given = sys.argv[1], dict(word.split("=") for word in sys.argv[2:])
    rounds, scale = int(given.get("rounds", 12)), given.get("scale", "tiny")
    serve = [sys.executable, __file__, scale]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = {
        where: subprocess.Popen(serve, env={**os.environ, "PYTHONPATH": path}, **pipes)
        for where, path in {"there": other, "here": str(Path.cwd())}.items()
    }
    for optimizer in OPTIMIZERS:
        seen = [{w: _asked(p, optimizer) for w, p in processes.items()} for _ in range(rounds + 2)]
        print(f"\n{optimizer}")
        for part in (*PARTS, "whole update"):
            rows = {w: median(of[w][part] for of in seen[2:]) for w in processes}
            print(f"\n{part}\n{table(rows, 'there', AT_ONCE * 1e-3, 'ms per update')}")
    for process in processes.values():
        process.communicate()


if __name__ == "__main__":
    if len(sys.argv) == 2 and not Path(sys.argv[1]).is_dir():
        _serve(sys.argv[1])
    else:
        main()
