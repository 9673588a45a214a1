"""One stage under delay: W(t+1) = W(t) − u_t(∇loss(W(version(t)); batch t)), then a correction.

Everything that the semantics asks of a stage is here, once; executors only order the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer import optimizer_state
from trainer.corrections.none import NoCorrection
from trainer.halves import WeightsLater
from trainer.operations import Op
from trainer.versions import Versions


class InFlight(NamedTuple):
    """What a microbatch leaves on the stage between its forward and its backward."""

    x: Tensor
    output: Tensor
    weights_later: WeightsLater | None


class Halfway(NamedTuple):
    """Of a microbatch between the halves of its backward: the leaves it read, what they have of
    their gradients so far, and what is to come.
    """

    leaves: list[nn.Parameter]
    early: list[Tensor | None]
    weights_later: WeightsLater | None


class Stage:
    """A consecutive part of the model with its versions, gradients and delayed update.

    `tied` names the weights that another stage holds too; `lag` and `tied_lag` say how many
    versions behind the newest they and the others are read. `lr_factor` maps update t to a factor
    on every group's peak learning rate. `splits_backward`: the weights' gradients of the linear
    layers are left to `backward_weights`.
    """

    def __init__(
        self,
        module: nn.Module,
        make_optimizer: Callable[[Sequence[tuple[str, nn.Parameter]]], Optimizer],
        correction: NoCorrection,
        lr_factor: Callable[[int], float],
        *,
        lag: int,
        tied: frozenset[str],
        tied_lag: int,
        dtype: torch.dtype,
        splits_backward: bool = False,
        run: Callable[[nn.Module], Callable[[Tensor], Tensor]] = lambda module: module,
    ) -> None:
        names = [name for name, _ in module.named_parameters()]
        self.is_tied = [name in tied for name in names]
        self.lags = [tied_lag if is_tied else lag for is_tied in self.is_tied]
        self.versions = Versions(module, self.lags, dtype)
        self.optimizer = make_optimizer(list(zip(names, self.versions.master, strict=True)))
        self._peak_lrs = [group["lr"] for group in self.optimizer.param_groups]
        self.dtype = dtype
        self._correction, self._lr_factor, self._run = correction, lr_factor, run(module)
        self._splits_backward = splits_backward
        self._in_flight: dict[tuple[int, int, int], InFlight] = {}
        self._halfway: dict[tuple[int, int, int], Halfway] = {}
        self._read: dict[int, list[int]] = {}
        self._sums: dict[int, list[Tensor]] = {}

    @property
    def lr(self) -> float:
        """Learning rate of the last update, of the first parameter group."""
        return self.optimizer.param_groups[0]["lr"]

    def forward(
        self,
        op: Op,
        x: Tensor,
        loss: Callable[[Tensor], Tensor] | None = None,
        replica: int = 0,
    ) -> Tensor:
        """Runs the op's version on `x`, [batch, …]; the last stage gives `loss` of the output.

        `replica` keeps data-parallel replicas apart that share these weights (emulation).
        """
        self._read[op.batch] = [
            op.tied_version if is_tied else op.version for is_tied in self.is_tied
        ]
        self.versions.bind(self._read[op.batch])
        x = x.detach().requires_grad_(x.is_floating_point())
        later = WeightsLater() if self._splits_backward else None
        with later or nullcontext():
            output = self._run(x)
        output = output if loss is None else loss(output)
        self._in_flight[op.batch, op.microbatch, replica] = InFlight(x, output, later)
        return output.detach()

    def backward_input(self, op: Op, gradient: Tensor | None, replica: int = 0) -> Tensor | None:
        """Returns the loss gradient of this microbatch's input."""
        x, output, later = self._in_flight.pop((op.batch, op.microbatch, replica))
        leaves = self.versions.bind(self._read[op.batch])
        torch.autograd.backward(output, gradient)
        early = [_take_gradient(leaf) for leaf in leaves]
        self._halfway[op.batch, op.microbatch, replica] = Halfway(leaves, early, later)
        return x.grad

    def backward_weights(self, op: Op, replica: int = 0) -> None:
        """Adds this microbatch's gradients, in fp32; comes after its `backward_input`."""
        leaves, early, later = self._halfway.pop((op.batch, op.microbatch, replica))
        late = later.compute() if later else {}
        gradients = [
            _sum(leaf, gradient, late.get(leaf))
            for leaf, gradient in zip(leaves, early, strict=True)
        ]
        if replica in self._sums:
            torch._foreach_add_(self._sums[replica], gradients)
        else:
            self._sums[replica] = [
                gradient.to(master.dtype)
                for gradient, master in zip(gradients, self.versions.master, strict=True)
            ]

    def take_gradients(self) -> list[Tensor]:
        """The sum over the microbatches of the batch just finished, then over replicas."""
        replicas, self._sums = self._sums, {}
        total = replicas.pop(0)
        for replica in sorted(replicas):
            torch._foreach_add_(total, replicas[replica])
        return total

    def update(self, batch: int, gradients: Sequence[Tensor]) -> None:
        """W(t+1) = W(t) − u_t, acting on the live W(t), then the correction."""
        for group, peak in zip(self.optimizer.param_groups, self._peak_lrs, strict=True):
            group["lr"] = peak * self._lr_factor(batch)
        delays = [batch - version for version in self._read.pop(batch)]
        weights = self.versions.open()
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        self._correction.before(weights)
        self.optimizer.step()
        with torch.no_grad():
            self._correction.after(weights, delays)
        self.optimizer.zero_grad(set_to_none=True)
        self.versions.close()

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> Tensor:
        """Forward of the newest weights, W(t+1), in the master's dtype."""
        self.versions.bind_master()
        return self._run(x)

    def state(self) -> dict[str, dict[str, Any]]:
        """All that the stage needs to go on after a drain, by weight: stages may be cut anew."""
        versions, optimizer = self.versions.state(), optimizer_state.by_weight(self.optimizer)
        corrections: Sequence[Tensor | None] = self._correction.state() or [None] * len(versions)
        return {
            name: {**versions[name], "optimizer": optimizer[master], "correction": correction}
            for name, master, correction in zip(
                self.versions.names, self.versions.master, corrections, strict=True
            )
        }

    def restore(self, state: Mapping[str, dict[str, Any]]) -> None:
        """Takes back what `state` gave, from a state that may hold other stages' weights too."""
        mine = [state[name] for name in self.versions.names]
        masters = self.versions.master
        self.versions.restore(mine)
        saved = {master: of["optimizer"] for master, of in zip(masters, mine, strict=True)}
        optimizer_state.restore(self.optimizer, saved)
        corrections = [of["correction"] for of in mine if of["correction"] is not None]
        self._correction.restore([tensor.to(masters[0].device) for tensor in corrections])


def _take_gradient(leaf: nn.Parameter) -> Tensor | None:
    """The leaf's gradient, which it gives up: the next batch on this version starts anew."""
    gradient, leaf.grad = leaf.grad, None
    return gradient


def _sum(leaf: nn.Parameter, *parts: Tensor | None) -> Tensor:
    """A microbatch's gradient of a leaf from what each half of its backward found, if anything."""
    found = [part for part in parts if part is not None]
    return sum(found[1:], found[0]) if found else torch.zeros_like(leaf)
