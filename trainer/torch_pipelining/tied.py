"""Weights that the first and the last stage share by value, such as an embedding and a head."""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from trainer.base.errors import BadInput
from trainer.base.flat import local
from trainer.torch_pipelining.neighbours import new_groups, ranks_of, started


class Tied:
    """Gives both copies of each tied weight one gradient, the sum of both, and one value at first.

    `numbers` are those of the tied weights of this stage, and `counted` those of the weights that
    the norm counts here: a tied one counts on the first stage. Raises BadInput, on all ranks alike,
    unless the first and the last stage name weights of equal shapes, in one order.
    """

    def __init__(self, stage: PipelineStage, weights: nn.Module, names: Sequence[str]) -> None:
        named = dict(weights.named_parameters())
        shapes: list[Any] = [None] * stage.num_stages
        mine = [getattr(named.get(name), "shape", name) for name in names]
        dist.all_gather_object(shapes, mine, group=stage.group)
        are_known = not any(isinstance(shape, str) for of_stage in shapes for shape in of_stage)
        if not are_known or any(shapes[1:-1]) or shapes[0] != shapes[-1]:
            allowed = "must name weights of equal shapes on the first and on the last stage alone"
            raise BadInput("tied", list(names), allowed)
        self.numbers = [list(named).index(name) for name in names]
        copies = [] if stage.is_first else self.numbers
        self.counted = [i for i in range(len(named)) if i not in copies]
        first, *_, last = 2 * ranks_of(stage)
        [self._group] = new_groups(sorted({first, last}), 1)
        self._first = first
        self._sums: list[dist.Work] = []

    def make_equal(self, weights: Sequence[Tensor]) -> None:
        """Gives the last stage's copies the values of the first stage's; both ranks call it."""
        for i in self.numbers:
            dist.broadcast(local(weights[i].detach()), self._first, group=self._group)

    def begin(self, weights: Sequence[Tensor]) -> None:
        """Starts to add up a batch's gradients. Raises RuntimeError where a weight has none."""
        for i in self.numbers:
            gradient = weights[i].grad
            if gradient is None:
                raise RuntimeError("a tied weight got no gradient on this stage")
            work = dist.all_reduce(local(gradient), group=self._group, async_op=True)
            self._sums.append(started(work))

    def finish(self) -> None:
        """Waits until the gradients are added up."""
        while self._sums:
            self._sums.pop(0).wait()
