"""The tiny trial's update on one core, against the same step written with transformers.

python -m bench.tiny_step [rounds]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from bench.steps import ours, theirs
from bench.timing import medians, table
from trainer.base.build import build
from trainer.base.resources import reproducible
from trainer.config.compose import compose
from trainer.models.llama import Llama

BATCH, LENGTH = 16, 128


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
        "transformers + torch.optim.AdamW": theirs([]),
        "pipegap, sync": ours([]),
        "pipegap, delay + EF": ours(["pipeline=pipedream_2bw", "correction=error_feedback"]),
        "pipegap, sync, compile=true": ours(["compile=true"]),
        "its matrix products alone": matmuls(),
    }
    with reproducible(seed=0, num_threads=1):
        found = medians(contenders, rounds)
    print(table(found, "transformers + torch.optim.AdamW", 1e-3, "ms per update"))


if __name__ == "__main__":
    main()
