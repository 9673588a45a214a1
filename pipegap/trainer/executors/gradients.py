"""From the stages' gradients of a batch to one clipped gradient of the model, for both executors.

The global norm is made from one vector with one slot per weight, in the model's order and tied
weights once, so that it is the same number for any number of stages and processes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import get_total_norm

from pipegap.trainer.base.flat import chosen, local_parts
from pipegap.trainer.stages.stage import Stage


@dataclass(frozen=True)
class Update:
    """An applied update: batch, its mean loss in nats per token, the gradient's norm before the
    clip, and the learning rate."""

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
    """The slots of a stage's weights in a vector [size]: consecutive ones from `start` on.

    Only `owned` weights have a slot; the second copy of a tied weight is not owned, and neither is
    a weight whose gradient does not belong to the norm.
    """

    start: int
    size: int
    owned: list[bool]

    def norms(self, gradients: Sequence[Tensor]) -> Tensor:
        """A vector [size]: the norm of each owned weight's gradient in its slot, 0 elsewhere.

        The sum of these vectors over all ranks holds the norms of the whole model.
        """
        owned = [g for g, is_owned in zip(gradients, self.owned, strict=True) if is_owned]
        norms = torch.stack(torch._foreach_norm(owned)) if owned else gradients[0].new_empty(0)
        return F.pad(norms, (self.start, self.size - self.start - len(owned)))


def slots(names: Sequence[Sequence[str | None]]) -> list[Slots]:
    """Return the slots of each stage.

    `names[s]` has the name of each weight of stage s, or None for a weight without a slot.
    """
    names_with_slot: dict[str, None] = {}
    starts, owned = [], []
    for of_stage in names:
        starts.append(len(names_with_slot))
        owned.append([name is not None and name not in names_with_slot for name in of_stage])
        names_with_slot.update({name: None for name in of_stage if name is not None})
    return [
        Slots(start, len(names_with_slot), is_owned)
        for start, is_owned in zip(starts, owned, strict=True)
    ]


@dataclass(frozen=True)
class Clip:
    """Scales gradients down to a norm of at most `norm`, as torch's clip_grad_norm_ does.

    With `by_stage` each stage is clipped by the norm of its own weights, so that none waits for
    another one, and a tied weight by its own norm, which both of its stages know: so its copies
    stay equal. The default is the norm of the whole model.
    """

    norm: float
    by_stage: bool = False

    def stage(
        self, stage: Stage, gradients: Sequence[Tensor], norm_of_model: Callable[[], Tensor]
    ) -> None:
        """Clips a stage's gradients in place. `by_stage` does not ask for the model's norm."""
        numbers = [i for i, slot in enumerate(stage.slots) if slot is not None]
        if not self.by_stage:
            self(chosen(gradients, numbers), norm_of_model())
            return
        untied = chosen(gradients, (i for i in numbers if not stage.is_tied[i]))
        tied = [[gradients[i]] for i in numbers if stage.is_tied[i]]
        for together in [untied, *tied] if untied else tied:
            self(together, get_total_norm(together))

    def __call__(self, gradients: Sequence[Tensor], norm: Tensor) -> None:
        """Clips gradients of this norm in place."""
        scale = (self.norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(local_parts(gradients), scale)
