"""What a step makes and drops is as declared; on a GPU: tests/fake_cuda/test_memory.py."""

import pytest
import torch
from torch import nn

from tests.support.every_optimizer import NAMES, maker
from tests.support.live_memory import LiveMemory
from trainer.optimizers.dropped import dropped_entries

SHAPES = [(64, 128)] * 4 + [(128, 64)] * 2
FP32 = 4
STEPS, RENEWED_EVERY = 5, 3
ON_A_GPU = {"adamh", "adamw", "muonh", "nadamw", "nanochat", "normuonh", "sgd", "sgdw"}
"""Optimizers that do otherwise on a CPU, or that step vectors (`trainer.optimizers.joined`)."""
REPLACE = {"shampoo", "soap"}
"""Their new states would count as made in the step, and the old ones as nothing."""


@pytest.mark.parametrize("name", sorted({*NAMES} - ON_A_GPU - REPLACE))
def test_a_step_drops_what_is_declared(name: str) -> None:
    """Of hidden matrices; the first two steps of some make states alone. One that declares nothing
    may drop less."""
    factory = maker(name, precondition_every=RENEWED_EVERY)
    weights = [nn.Parameter(torch.randn(shape), requires_grad=False) for shape in SHAPES]
    optimizer = factory([("matrix", weight) for weight in weights])
    peaks = [_peak_of_a_step(optimizer, weights) for _ in range(STEPS)]
    declared = dropped_entries(factory.func)([("matrix", shape) for shape in SHAPES])
    share = max(peaks[2:]) / (FP32 * declared)
    assert (0.9 if hasattr(factory.func, "drops") else 0) <= share <= 1.1


def _peak_of_a_step(optimizer: torch.optim.Optimizer, weights: list[nn.Parameter]) -> int:
    for weight in weights:
        weight.grad = torch.rand_like(weight)
    with LiveMemory() as memory:
        optimizer.step()
    return memory.peak
