"""The tiny trial's update on one core, against the same step written with transformers.

python -m bench.tiny_step [rounds]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from transformers import LlamaConfig, LlamaForCausalLM

from bench.timing import medians, table
from trainer.base.build import build
from trainer.base.resources import reproducible
from trainer.config.compose import compose
from trainer.executors.emulated import Emulated
from trainer.executors.gradients import Clip
from trainer.models.llama import Llama
from trainer.models.loss import cross_entropy
from trainer.parts import build_stages
from trainer.schedules.operations import Schedule

BATCH, LENGTH, UPDATES = 16, 128, 100_000


def batch(t: int) -> Tensor:
    """Random bytes: the time does not depend on what they say."""
    return torch.randint(0, 256, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(t))


def ours(*overrides: str) -> Callable[[], None]:
    """One update of the emulated executor, all of it but data and records."""
    config = compose(["optimizer=adamw", f"num_updates={UPDATES}", *overrides])
    model: Llama = build(config["model"])
    schedule: Schedule = build(config["pipeline"], UPDATES)
    stages = build_stages(config, model, schedule, lambda t: 1.0, torch.device("cpu"), range(1))
    executor = Emulated(stages, schedule, batch, cross_entropy, Clip(1.0))
    updates = iter(range(UPDATES))

    def update() -> None:
        t = next(updates)
        executor.run(t, t + 1, lambda update: None)

    return update


def theirs() -> Callable[[], None]:
    """The plain loop: transformers' Llama, torch's AdamW and clip."""
    recipe: Llama = build(compose([])["model"])
    model = LlamaForCausalLM(LlamaConfig(**recipe.pretrained({}).config))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002, betas=(0.9, 0.95), weight_decay=0.1)
    updates = iter(range(UPDATES))

    def update() -> None:
        rows = batch(next(updates))
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits
        F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return update


def matmuls() -> Callable[[], None]:
    """Every matrix product of a step's linear layers and head, forward and backward, alone."""
    recipe: Llama = build(compose([])["model"])
    module = recipe.stage(0, recipe.split(1, LENGTH))
    shapes = [tuple(p.shape) for p in module.parameters() if p.ndim == 2]
    tokens = BATCH * LENGTH
    work = [(torch.randn(tokens, i), torch.randn(o, i), torch.randn(tokens, o)) for o, i in shapes]

    def multiply() -> None:
        for x, weight, gradient in work:
            _ = x @ weight.T, gradient @ weight, gradient.T @ x

    return multiply


def main() -> None:
    """Prints the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    contenders = {
        "transformers + torch.optim.AdamW": theirs(),
        "pipegap, sync": ours(),
        "pipegap, delay + EF": ours("pipeline=pipedream_2bw", "correction=error_feedback"),
        "pipegap, sync, compile=true": ours("compile=true"),
        "its matrix products alone": matmuls(),
    }
    with reproducible(seed=0, num_threads=1):
        found = medians(contenders, rounds)
    print(table(found, "transformers + torch.optim.AdamW", 1e-3, "ms per update"))


if __name__ == "__main__":
    main()
