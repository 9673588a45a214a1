"""What a dry update holds beside the weights, their gradients and the optimizer's states."""

import torch
from torch import nn

from tests.support.live_memory import LiveMemory
from trainer.stages.update import dry_update, update_of

SIZE = 64 * 4096
FP32 = 4


def test_it_copies_the_states_once() -> None:
    """The weights, their change and both moments of Adam; a deep copy is counted twice."""
    weight = nn.Parameter(torch.ones(64, 4096), requires_grad=False)
    gradient = torch.ones(64, 4096)
    optimizer = torch.optim.AdamW([weight], foreach=False, fused=True)
    update_of(optimizer, [weight], [gradient])
    with LiveMemory() as memory:
        dry_update(optimizer, [weight], [gradient])
    assert memory.peak < (2 + 2 * 2 + 0.1) * FP32 * SIZE
