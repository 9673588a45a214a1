"""What delay and Error Feedback add to an update of SmolLM2-135M, in time and memory.

    python -m bench.delay_cost [device=cuda] [dtype=bfloat16] [rounds=5] [tokens=1024]

Times an update (optimizer, versions, correction) and a forward/backward apart, and puts them
together for the paper's batch of 180K tokens. That is an extrapolation, and labelled so.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import torch

from bench.timing import medians
from trainer.base.build import build
from trainer.base.resources import require_device
from trainer.config.compose import compose
from trainer.models.llama import Llama
from trainer.models.loss import cross_entropy
from trainer.parts import build_stages
from trainer.schedules.operations import Op, Schedule
from trainer.stages.stage import Stage

ARMS = {
    "sync": ["pipeline=sync"],
    "delay": ["pipeline=pipedream_2bw"],
    "delay + EF": ["pipeline=pipedream_2bw", "correction=error_feedback"],
}
PAPER_BATCH = 180_000


def make_stage(words: list[str], optimizer: str, device: torch.device, dtype: str) -> Stage:
    """The whole 135M model as one stage."""
    choices = ["model=smollm2_135m", "data=fineweb_edu", f"optimizer={optimizer}", *words]
    config = compose([*choices, f"dtype={dtype}"])
    model: Llama = build(config["model"])
    schedule: Schedule = build(config["pipeline"], 1000)
    [stage] = build_stages(config, model, schedule, lambda t: 1.0, device, range(1))
    return stage


def updater(stage: Stage, device: torch.device) -> Callable[[], None]:
    """Applies one update with gradients that are there already."""
    batches = iter(range(1000))
    gradients = [torch.full_like(weight, 1e-3) for weight in stage.versions.master]

    def update() -> None:
        t = next(batches)
        stage._read[t] = [max(0, t - lag) for lag in stage.lags]
        stage.update(t, [gradient.clone() for gradient in gradients])
        _wait(device)

    return update


def seconds_a_token(stage: Stage, tokens: int, device: torch.device, rounds: int) -> float:
    """Seconds per token of a forward and backward of one sequence."""
    rows = torch.randint(0, 49152, (1, tokens + 1), device=device)
    version = stage.versions.newest
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        op = Op("F", 0, 0, 0, version, version)
        stage.forward(op, rows[:, :-1], lambda logits: cross_entropy(logits, rows[:, 1:]))
        stage.backward_input(op, None)
        stage.backward_weights(op)
        stage.take_gradients()
        _wait(device)
        found.append((time.perf_counter() - start) / tokens)
    return median(found)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    """Prints one table per optimizer."""
    given = dict(word.split("=") for word in sys.argv[1:])
    device, dtype = require_device(given.get("device", "cpu")), given.get("dtype", "float32")
    rounds, tokens = int(given.get("rounds", "5")), int(given.get("tokens", "1024"))
    torch.set_num_threads(1)
    for optimizer in ("adamw", "muon"):
        stages = {arm: make_stage(words, optimizer, device, dtype) for arm, words in ARMS.items()}
        found = medians({arm: updater(stage, device) for arm, stage in stages.items()}, rounds)
        a_token = seconds_a_token(stages["sync"], tokens, device, 3)
        whole = found["sync"] + PAPER_BATCH * a_token
        print(f"\n{optimizer}, {device} {dtype}: {a_token * 1e6:.1f} µs per token")
        print("| | s per update | extra over sync, of a 180K-token update (extrapolated) |")
        print("| --- | --- | --- |")
        for arm, seconds in found.items():
            print(f"| {arm} | {seconds:.3f} | {(seconds - found['sync']) / whole:.3%} |")


if __name__ == "__main__":
    main()
