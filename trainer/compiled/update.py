"""Optimizer, Error Feedback and copy of versions of a whole stage, as one graph."""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.compiled.graphs import Graph, graph_of
from trainer.compiled.rules import Rule


class Block(NamedTuple):
    """What decides the graph of one block.

    `shape` is [members, *shape of a weight], `state` has the shape of each tensor of the rule. The
    new version is written to other memory than the old one if the block `is_late`.
    """

    rule: Rule
    shape: torch.Size
    state: tuple[torch.Size, ...]
    num_numbers: int
    is_late: bool


class UpdateShape(NamedTuple):
    """What decides the graph of a stage's update.

    With `gives_update` the graph returns u_t; with `has_feedback`, which needs this, it also
    corrects by Error Feedback.
    """

    blocks: tuple[Block, ...]
    gives_update: bool
    has_feedback: bool
    num_threads: int


def update_graph(update: UpdateShape) -> Graph:
    """(numbers, *tensors) → u_t of each block, if the graph gives it.

    `numbers` are those of each block's rule, then the coefficient λ of Error Feedback of each
    member of each block; λ = 0 corrects nothing. The tensors are, block by block, the old version,
    the new one if it lies elsewhere, the gradients, the tensors of the rule, and u_{t−1} with Error
    Feedback. The new version and the tensors of the rule are changed in place.
    """
    return _graph(update)


@cache
def _graph(update: UpdateShape) -> Graph:
    def function(numbers: Tensor, *tensors: Tensor) -> list[Tensor]:
        taken, at, given = iter(tensors), 0, []
        coefficients = sum(block.num_numbers for block in update.blocks)
        for block in update.blocks:
            old = next(taken)
            new = next(taken) if block.is_late else old
            gradients = next(taken)
            state = [next(taken) for _ in block.state]
            mine = numbers[at : at + block.num_numbers].unbind()
            at += block.num_numbers
            stepped = block.rule.stepped(old, gradients, state, mine)
            if update.gives_update:
                given.append(old - stepped)
            if update.has_feedback:
                factors = numbers[coefficients : coefficients + block.shape[0]]
                coefficients += block.shape[0]
                stepped = stepped + _feedback(given[-1], next(taken), factors)
            new.copy_(stepped)
        return given

    return graph_of(function, _examples(update), update.num_threads)


def _feedback(update: Tensor, earlier: Tensor, factors: Tensor) -> Tensor:
    """λ (u_{t−1} − u_t) of each member, or 0 where u_{t−1} is zero."""
    entries = tuple(range(1, update.ndim))
    factors = factors * (earlier.abs().sum(entries) != 0)
    return factors.view(-1, *[1] * len(entries)) * (earlier - update)


def _examples(update: UpdateShape) -> list[Tensor]:
    num = sum(block.num_numbers for block in update.blocks)
    num += sum(block.shape[0] for block in update.blocks) if update.has_feedback else 0
    examples = [torch.zeros(num)]
    for block in update.blocks:
        copies = 2 + block.is_late
        examples += [torch.zeros(block.shape) for _ in range(copies)]
        examples += [torch.zeros(shape) for shape in block.state]
        examples += [torch.zeros(block.shape)] if update.has_feedback else []
    return examples
