"""What a delay costs in a loop of one's own.

    python -m bench.delayed [rounds=5] [rows=4] [layers=30]

A training step of SmolLM2-135M's shape (`layers` of its 30; `rows` sequences of 1,024 tokens) in
fp32 with fused AdamW and a clip: with the bare optimizer, and with `DelayedOptimizer` around it, in
turn. The aim: at most 3 % more. What it adds to the update does not depend on `rows`: the last
column compares that alone with the bare step.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW, Optimizer

from bench.timing import medians, options
from trainer.base.build import build
from trainer.base.resources import reproducible
from trainer.config.compose import compose
from trainer.delayed import DelayedOptimizer
from trainer.models.loss import cross_entropy

SEQ_LEN = 1_024
WRAPPERS: dict[str, Callable[[Optimizer], Optimizer]] = {
    "bare AdamW": lambda optimizer: optimizer,
    "delay 0": partial(DelayedOptimizer, delay=0),
    "delay 1": partial(DelayedOptimizer, delay=1, error_feedback=0.0),
    "delay 1, Error Feedback": DelayedOptimizer,
    "delay 1, Error Feedback, keep=gradients": partial(DelayedOptimizer, keep="gradients"),
}
"""What is timed → what is put around the bare optimizer."""


class LoopStep:
    """A training step of a model of its own; `update` is its part after the backward."""

    def __init__(self, wrap: Callable[[Optimizer], Optimizer], rows: int, layers: int) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        words = ["model=smollm2_135m", f"model.num_layers={layers}"]
        recipe: Any = build(compose(words)["model"])
        module = recipe.stage(0, recipe.split(1, SEQ_LEN)).to_empty(device="cpu")
        recipe.initialise(module, 0)
        self.module = module.to(device)
        fused = AdamW(self.module.parameters(), lr=1e-4, fused=True)
        self.optimizer = wrap(fused)
        shape = (rows, SEQ_LEN + 1)
        self.batch = torch.randint(0, recipe.vocab_size, shape, device=device)

    def whole(self) -> None:
        """Forward, backward and update."""
        self.optimizer.zero_grad()
        cross_entropy(self.module(self.batch[:, :-1]), self.batch[:, 1:]).backward()
        self.update()

    def update(self) -> None:
        """Clip and step, with the gradients that are there."""
        clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        if self.batch.is_cuda:
            torch.cuda.synchronize()


def main() -> None:
    """Prints a table."""
    given = options(rounds=5, rows=4, layers=30)
    with reproducible(0, torch.get_num_threads()):
        steps = {name: LoopStep(wrap, given.rows, given.layers) for name, wrap in WRAPPERS.items()}
        whole = medians({name: step.whole for name, step in steps.items()}, given.rounds)
        update = medians({name: step.update for name, step in steps.items()}, given.rounds)
    [bare, *_] = WRAPPERS
    print("| | step, ms | its update, ms | more, % of the bare step | by its update alone, % |")
    print("| --- | --- | --- | --- | --- |")
    for name in WRAPPERS:
        more = 100 * (whole[name] / whole[bare] - 1)
        alone = 100 * (update[name] - update[bare]) / whole[bare]
        seconds = f"{1e3 * whole[name]:.0f} | {1e3 * update[name]:.1f}"
        print(f"| {name} | {seconds} | {more:.1f} | {alone:.1f} |")


if __name__ == "__main__":
    main()
