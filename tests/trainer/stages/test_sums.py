"""Gradients in bf16 are added up in fp32; a dry update and a probe hold few sets of tensors."""

import operator
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from pipegap.trainer.base import flat
from pipegap.trainer.stages.backward import Sums
from pipegap.trainer.stages.probe import Probe
from pipegap.trainer.stages.update import dry_update, step
from tests.support.live_memory import LiveMemory

SHAPES = [(3, 5), (7,), (2, 2, 2)] * 7
DTYPES = [torch.bfloat16, torch.float32, torch.bfloat16] * 7


@pytest.mark.parametrize("largest", [1, 40, flat.LARGEST])
def test_the_sum_is_that_of_the_numbers_in_fp32(
    monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    monkeypatch.setattr(flat, "LARGEST", largest)
    pieces = list(flat.pieces([torch.empty(shape) for shape in SHAPES]))
    assert [tensor.shape for piece in pieces for tensor in piece] == [*map(torch.Size, SHAPES)]
    assert all(len(piece) == 1 or sum(map(torch.numel, piece)) <= largest for piece in pieces)
    generator = torch.Generator().manual_seed(0)
    batches = [
        [torch.randn(s, generator=generator).to(d) for s, d in zip(SHAPES, DTYPES, strict=True)]
        for _ in range(4)
    ]
    sums = Sums(torch.float32)
    every = [[tensor.float().clone() for tensor in batch] for batch in batches]
    for batch in batches:
        sums.add(0, batch)
    for i, of_weight in enumerate(sums.take()):
        wide = [batch[i] for batch in every]
        assert torch.equal(of_weight, wide[0] + wide[1] + wide[2] + wide[3])


def test_gradients_in_the_masters_dtype_become_the_sum() -> None:
    gradients, sums = [torch.ones(shape) for shape in SHAPES], Sums(torch.float32)
    sums.add(0, gradients)
    assert all(map(operator.is_, sums.take(), gradients))


def test_replicas_are_added_up_in_their_order() -> None:
    sums, numbers = Sums(torch.float32), {2: 1.0, 1: 2.0**-24, 0: 2.0**-24}
    for replica, number in numbers.items():
        sums.add(replica, [torch.full(shape, number) for shape in SHAPES])
    one_more = 1 + 2.0**-23  # after the 1 a small one is rounded away
    assert all((of_weight == one_more).all() for of_weight in sums.take())


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
