"""What `update` did: the optimizers that stepped, and by which gradients."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pipegap.trainer.torch_pipelining.sums import entries


class Steps:
    """A context around `update`, which steps weights by the gradients that they have.

    Raises RuntimeError before the step of an optimizer whose weights have lost them, and at the end
    if they are left and no weight of theirs was stepped. An `update` without a step may drop them.
    """

    def __init__(self, weights: Sequence[Tensor], *, looks: bool) -> None:
        """`looks` at the gradients' entries, too, for which the host waits."""
        self.optimizers: list[Optimizer] = []
        """That stepped."""
        self._looks = looks
        self._given = {id(w): w for w in weights if self._has_gradient(w)}
        self._versions = [weight._version for weight in self._given.values()]

    @property
    def has_looked(self) -> bool:
        """Whether there was something to see."""
        return self._looks and bool(self._given)

    def __enter__(self) -> "Steps":
        after = lambda optimizer, *_: self.optimizers.append(optimizer)  # noqa: E731
        self._hooks = (
            register_optimizer_step_pre_hook(lambda optimizer, *_: self._require_kept(optimizer)),
            register_optimizer_step_post_hook(after),
        )
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        are_left = any(weight.grad is not None for weight in self._given.values())
        if kind is None and are_left and not self._have_stepped():
            raise RuntimeError(
                "update() made no optimizer step of the weights of the stage: every batch is one "
                "update; for gradients over more of them give the schedule more microbatches"
            )

    def _have_stepped(self) -> bool:
        """What a fused or foreach step changes of a DTensor shows in no version of the weight."""
        versions = [weight._version for weight in self._given.values()]
        return versions != self._versions or any(map(self._of, self.optimizers))

    def _of(self, optimizer: Optimizer) -> dict[int, Tensor]:
        """The weights of this optimizer that were given a gradient."""
        every = (id(weight) for group in optimizer.param_groups for weight in group["params"])
        return {key: self._given[key] for key in every if key in self._given}

    def _require_kept(self, optimizer: Optimizer) -> None:
        mine = self._of(optimizer)
        has_any = any(map(self._has_gradient, mine.values()))
        is_second = any(mine.keys() & self._of(before).keys() for before in self.optimizers)
        if mine and not has_any and not is_second:
            raise RuntimeError(
                "update() cleared the gradients before the optimizer's step, which then trains "
                "nothing: call zero_grad after the step, or not at all"
            )

    def _has_gradient(self, weight: Any) -> bool:
        return weight.grad is not None and (not self._looks or bool(entries(weight.grad).any()))
