"""The gap of AdamW at the scale `tiny`, made in a loop that is not ours, beside that of the trials.

    python -m bench.own_loop [seeds=0,1,2,3,4,5,6,7]

The loop has transformers' Llama, torch's AdamW and LambdaLR, and windows of the text that numpy
draws. Two of its lines are for the delay: `DelayedOptimizer` around the optimizer, and `newest()`
around the evaluation. Shape and settings are those of the scale. The trials are those of
docs/long_trials.csv. Seeds mean other weights and batches than theirs, so the two gaps agree in
their intervals and not by the digit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from analysis.statistics.intervals import mean_interval
from sweeps.request.files import scale_file
from trainer.base.build import build
from trainer.base.places import CODE_ROOT
from trainer.base.resources import reproducible
from trainer.config.compose import compose
from trainer.data.batches import Windows
from trainer.data.tokens import Dataset
from trainer.delayed import DelayedOptimizer
from trainer.models.loss import cross_entropy

CONFIG = compose(scale_file("tiny"))
UPDATES, LENGTH, ROWS = CONFIG["num_updates"], CONFIG["seq_len"], CONFIG["batch_size"]
PUBLISHED = CODE_ROOT / "docs" / "long_trials.csv"


def model() -> nn.Module:
    """transformers' Llama of the scale's shape."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = CONFIG["model"]
    kept = ("vocab_size", "hidden_size", "intermediate_size", "rms_norm_eps", "initializer_range")
    return LlamaForCausalLM(
        LlamaConfig(
            **{key: shape[key] for key in kept},
            num_attention_heads=shape["num_heads"],
            num_key_value_heads=shape["num_kv_heads"],
            num_hidden_layers=shape["num_layers"],
            tie_word_embeddings=shape["tied_embeddings"],
            rope_parameters={"rope_type": "default", "rope_theta": shape["rope_theta"]},
            max_position_embeddings=LENGTH,
        )
    )


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    """torch's AdamW, without decay on norms."""
    given = CONFIG["optimizer"]
    weights = [*module.parameters()]
    groups = [
        {"params": [w for w in weights if w.ndim > 1], "weight_decay": given["weight_decay"]},
        {"params": [w for w in weights if w.ndim <= 1], "weight_decay": 0.0},
    ]
    betas = given["momentum"], given["variance_decay"]
    return torch.optim.AdamW(groups, lr=given["lr"], betas=betas, eps=given["eps"])


def batches(data: Dataset, seed: int) -> Iterator[Tensor]:
    """Windows that begin anywhere."""
    drawn = np.random.default_rng(seed)
    while True:
        starts = drawn.integers(len(data.train) - LENGTH - 1, size=ROWS)
        rows = [data.train.read(int(start), LENGTH + 1) for start in starts]
        yield torch.from_numpy(np.stack(rows))


def final_loss(data: Dataset, delay: int, seed: int) -> float:
    """Trains one run; its loss on the whole validation split."""
    torch.manual_seed(seed)
    module = model()
    optimizer = DelayedOptimizer(optimizer_of(module), delay, error_feedback=0.0)
    scheduler = LambdaLR(optimizer, build(CONFIG["lr_schedule"], UPDATES))
    for _, batch in zip(range(UPDATES), batches(data, seed), strict=False):
        optimizer.zero_grad()
        cross_entropy(module(batch[:, :-1]).logits, batch[:, 1:]).backward()
        nn.utils.clip_grad_norm_(module.parameters(), CONFIG["clip_norm"])
        optimizer.step()
        scheduler.step()
    total, count = 0.0, 0
    with optimizer.newest(), torch.no_grad():
        for batch in Windows(data.validation, LENGTH).batches(256):
            logits = module(batch[:, :-1]).logits
            total += cross_entropy(logits, batch[:, 1:]).item() * batch[:, 1:].numel()
            count += batch[:, 1:].numel()
    return total / count


def published() -> list[float]:
    """The paired gaps of the trials."""
    trials = pd.read_csv(PUBLISHED)
    trials = trials[(trials["optimizer"] == "adamw") & trials["arm"].isin(["sync", "delay"])]
    losses = trials.pivot_table(index="seed", columns="arm", values="final_val_loss")
    return list(losses["delay"] - losses["sync"])


def _row(name: str, gaps: Sequence[float]) -> str:
    low, high = mean_interval(np.array(gaps))
    return f"| {name} | {len(gaps)} | {np.mean(gaps):+.4f} | {low:+.4f} to {high:+.4f} |"


def main() -> None:
    """Prints each pair as it ends, then both gaps."""
    given = dict(word.split("=") for word in sys.argv[1:])
    seeds = [int(seed) for seed in given.get("seeds", "0,1,2,3,4,5,6,7").split(",")]
    data, gaps = build(CONFIG["data"]).open(), []
    with reproducible(0, 1):
        for seed in seeds:
            sync, delay = (final_loss(data, delay, seed) for delay in (0, 1))
            gaps.append(delay - sync)
            print(f"seed {seed}: {sync:.4f}, {delay:.4f}, gap {gaps[-1]:+.4f}", flush=True)
    print("| | seeds | gap, nats per byte | 95 % interval |\n| --- | --- | --- | --- |")
    print(_row("trials of docs/long_trials.csv", published()))
    print(_row("a loop of one's own", gaps))


if __name__ == "__main__":
    main()
