"""One update of delay with Error Feedback: a weight-update hook of NVIDIA's Emerging-Optimizers.

    hook = DelayedHook(error_feedback=1.0)
    muon = Muon(matrices, lr=0.02, weight_update_hook=hook)
    hook.attach(muon)                       # the loop stays as it is

W(t+1) = W(t) − u_t − λ (u_t − u_{t−1}), where u_t is the whole change that the optimizer makes of
W(t), its decay too, from a gradient at W(t − 1). Between steps the weights are W(t − 1). It takes
two more sets of these weights, sharded as they are.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer


class DelayedHook:
    """The optimizer calls the two `_inplace` functions around the last addition to each weight."""

    def __init__(self, error_feedback: float = 1.0) -> None:
        self._coefficient = error_feedback
        self._newest: dict[Tensor, Tensor] = {}
        self._change: dict[Tensor, Tensor] = {}

    def attach(self, optimizer: Optimizer) -> None:
        """Before the first step: from now on each begins with the newest weights."""
        for group in optimizer.param_groups:
            self._newest |= {weight: weight.detach().clone() for weight in group["params"]}
        optimizer.register_step_pre_hook(lambda *_: self._show_newest())

    @contextmanager
    def newest(self) -> Iterator[None]:
        """Shows W(t), to be evaluated and saved, and then what the next batch reads."""
        read = {weight: weight.detach().clone() for weight in self._newest}
        self._show_newest()
        yield
        self._set(read)

    def pre_weight_update_inplace(self, p: Tensor, update: Tensor) -> None:
        """Nothing: the decay came before, so this is not W(t) any more."""

    def post_weight_update_inplace(self, p: Tensor, pre_update_state: None) -> None:
        """Makes W(t+1) of the stepped W(t), which it leaves for the next batch to read."""
        before = self._newest[p]
        change = before - p
        p.sub_(self._coefficient * (change - self._change.get(p, change)))
        self._change[p], self._newest[p] = change, p.detach().clone()
        p.copy_(before)

    def _show_newest(self) -> None:
        self._set(self._newest)

    @torch.no_grad()
    def _set(self, values: dict[Tensor, Tensor]) -> None:
        for weight, value in values.items():
            weight.copy_(value)
