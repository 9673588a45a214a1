"""What a dry update and a probe hold beside the weights, their gradients and the states."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pipegap.trainer.stages.probe import Probe
from pipegap.trainer.stages.update import dry_update, step
from tests.support.live_memory import LiveMemory

NUM, SHAPE = 16, (64, 256)
SETS = 4 * NUM * 64 * 256
"""Bytes of one fp32 tensor per weight."""


def tensors() -> list[Tensor]:
    return [torch.ones(SHAPE) for _ in range(NUM)]


def stepped() -> tuple[torch.optim.Optimizer, Sequence[nn.Parameter]]:
    """An optimizer that has its states."""
    weights = [nn.Parameter(weight, requires_grad=False) for weight in tensors()]
    optimizer = torch.optim.AdamW(weights, foreach=False, fused=True)
    step(optimizer, weights, tensors())
    return optimizer, weights


def test_it_copies_the_states_and_the_weights_once() -> None:
    """A copy of both moments of Adam, and of the weights, which becomes their change."""
    optimizer, weights = stepped()
    gradients = tensors()
    with LiveMemory() as memory:
        dry_update(optimizer, weights, gradients)
    assert memory.peak < (2 + 1 + 0.2) * SETS


def test_a_probe_keeps_the_weights_before_the_update_alone() -> None:
    probe = Probe(tensors())
    weights, update = tensors(), tensors()
    with LiveMemory() as memory:
        probe.before(weights)
        probe.stepped(update)
        probe.applied(weights)
    assert memory.peak < (1 + 0.2) * SETS
