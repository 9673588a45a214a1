"""From the stages' gradients of a batch to one clipped gradient of the model, for both executors.

The global norm is made from one vector with a slot a weight, in the model's order and tied weights
once, so that it is the same number for any number of stages and processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import get_total_norm


@dataclass(frozen=True)
class Update:
    """What update t was made of: mean loss of batch t (nats a token), norm before the clip, lr."""

    batch: int
    loss: float
    grad_norm: float
    lr: float


class Diverged(ArithmeticError):
    """The loss or the gradient of a batch is not finite; its update was not applied."""

    def __init__(self, batch: int) -> None:
        super().__init__(f"the loss or the gradient of batch {batch} is not finite")
        self.batch = batch


@dataclass(frozen=True)
class Slots:
    """Where in a vector [size] a stage's weights lie: from `start` on, those that are `owned`.

    The second copy of a tied weight is not.
    """

    start: int
    size: int
    owned: list[bool]

    def norms(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of each owned weight's gradient in its slot, 0 elsewhere: ranks add up."""
        owned = [g for g, is_owned in zip(gradients, self.owned, strict=True) if is_owned]
        norms = torch.stack(torch._foreach_norm(owned)) if owned else gradients[0].new_empty(0)
        return F.pad(norms, (self.start, self.size - self.start - len(owned)))


def slots(names: Sequence[Sequence[str]]) -> list[Slots]:
    """The slots of each stage; `names` are those of the stages' weights, stage by stage."""
    seen: dict[str, None] = {}
    starts, owned = [], []
    for of_stage in names:
        starts.append(len(seen))
        owned.append([name not in seen for name in of_stage])
        seen.update(dict.fromkeys(of_stage))
    return [
        Slots(start, len(seen), is_owned) for start, is_owned in zip(starts, owned, strict=True)
    ]


@dataclass(frozen=True)
class Clip:
    """Scales gradients down to a norm of at most `norm`, as torch's clip_grad_norm_ does.

    `by_stage` takes the norm of each stage's weights alone, as asynchronous pipelines do that
    cannot wait for the others; the model's norm is the default.
    """

    norm: float
    by_stage: bool = False

    def __call__(self, gradients: Sequence[Tensor], norm_of_model: Tensor) -> None:
        """Clips one stage's gradients in place."""
        norm = get_total_norm(gradients) if self.by_stage else norm_of_model
        scale = (self.norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(list(gradients), scale)
