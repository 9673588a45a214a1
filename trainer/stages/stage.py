"""One stage under delay: W(t+1) = W(t) − u_t(∇loss(W(version(t)); batch t)), then a correction.

Everything that the semantics asks of a stage is here, once; executors only order the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer import optimizer_state
from trainer.corrections.none import NoCorrection
from trainer.diagnostics import Found, NoProbe, Probe, dry_update
from trainer.halves import Halfway, InFlight, WeightsLater, sum_of, take_gradient
from trainer.observer import Observer
from trainer.operations import Op
from trainer.optimizers import evaluated, kinds
from trainer.versions import Versions


class Stage:
    """A consecutive part of the model with its versions, gradients and delayed update.

    `tied` names the weights that another stage holds too; `lag` and `tied_lag` say how many
    versions behind the newest they and the others are read, which `make_correction` is told for
    each weight. `lr_factor` maps update t to a factor on every group's peak learning rate.
    `splits_backward`: the weights' gradients of the linear layers are left to `backward_weights`.
    """

    def __init__(
        self,
        module: nn.Module,
        make_optimizer: Callable[[Sequence[tuple[str, nn.Parameter]]], Optimizer],
        make_correction: Callable[[Sequence[int]], NoCorrection],
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
        self._correction = make_correction(self.lags)
        self.versions = Versions(module, self.lags, dtype, reads_ahead=self._correction.reads_ahead)
        self.optimizer = make_optimizer(list(zip(names, self.versions.master, strict=True)))
        self._peak_lrs = [group["lr"] for group in self.optimizer.param_groups]
        self.dtype = dtype
        self._lr_factor, self._run, self._kinds = lr_factor, run(module), kinds(module)
        self._probe = NoProbe()
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
        self.versions.bind(self._read[op.batch], op.batch)
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
        leaves = self.versions.bind(self._read[op.batch], op.batch)
        torch.autograd.backward(output, gradient)
        early = [take_gradient(leaf) for leaf in leaves]
        self._halfway[op.batch, op.microbatch, replica] = Halfway(leaves, early, later)
        return x.grad

    def backward_weights(self, op: Op, replica: int = 0) -> None:
        """Adds this microbatch's gradients, in fp32; comes after its `backward_input`."""
        leaves, early, later = self._halfway.pop((op.batch, op.microbatch, replica))
        late = later.compute() if later else {}
        gradients = [
            sum_of(leaf, gradient, late.get(leaf))
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

    @torch.no_grad()
    def correct(self, batch: int, gradients: Sequence[Tensor]) -> None:
        """Lets the correction change, in place, the batch's raw gradients, averaged over it all."""
        self._probe.raw(gradients)
        self._correction.gradient(gradients, self.versions.master, self._delays(batch))
        self._probe.corrected(gradients)

    def update(self, batch: int, gradients: Sequence[Tensor]) -> None:
        """W(t+1) = W(t) − u_t, acting on the live W(t), then the correction."""
        delays = self._delays(batch)
        del self._read[batch]
        self._set_lrs(batch, delays)
        weights = self.versions.open()
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        self._probe.before(weights)
        self._correction.before(weights)
        self.optimizer.step()
        self._probe.stepped(weights)
        with torch.no_grad():
            self._correction.after(weights, delays)
            self._probe.applied(weights)
            self.versions.close(self._correction.ahead(weights))
        self.optimizer.zero_grad(set_to_none=True)

    def rehearse(self, batch: int, gradients: Sequence[Tensor]) -> None:
        """Notes u_t of these gradients, to compare the next update with; makes none."""
        self._set_lrs(batch, self._delays(batch))
        del self._read[batch]
        self._probe = Probe(dry_update(self.optimizer, self.versions.master, gradients))

    @property
    def observe_every(self) -> int | None:
        """Updates between the observations that the optimizer asks for; None: it asks for none."""
        return self.optimizer.observe_every if isinstance(self.optimizer, Observer) else None

    @torch.no_grad()
    def observe(self, batch: int, gradients: Sequence[Tensor]) -> None:
        """Shows the optimizer gradients against sampled labels; makes no update."""
        del self._read[batch]
        assert isinstance(self.optimizer, Observer)
        self.optimizer.observe(dict(zip(self.versions.master, gradients, strict=True)))

    def take_comparison(self) -> Found:
        """What the last update was beside its rehearsal, by weight; nothing if it had none."""
        probe, self._probe = self._probe, NoProbe()
        names = self.versions.names
        return {
            name: (self._kinds[name], sums)
            for name, sums in zip(names, probe.found(), strict=False)
        }

    def _delays(self, batch: int) -> list[int]:
        return [batch - version for version in self._read[batch]]

    def _set_lrs(self, batch: int, delays: Sequence[int]) -> None:
        late = dict(zip(self.versions.master, delays, strict=True))
        for group, peak in zip(self.optimizer.param_groups, self._peak_lrs, strict=True):
            delay = max(late[weight] for weight in group["params"])
            factor = self._correction.lr_factor(batch, delay)
            group["lr"] = peak * self._lr_factor(batch) * factor

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> Tensor:
        """Forward of W(t+1), or what the optimizer evaluates for it, in the master's dtype."""
        self.versions.bind_others(evaluated(self.optimizer, self.versions.master))
        return self._run(x)

    def weights(self) -> dict[str, Tensor]:
        """What is evaluated and exported, by name, on the CPU."""
        tensors = evaluated(self.optimizer, self.versions.master)
        named = zip(self.versions.names, tensors, strict=True)
        return {name: tensor.detach().cpu() for name, tensor in named}

    def state(self) -> dict[str, dict[str, Any]]:
        """All that the stage needs to go on after a drain, by weight: stages may be cut anew."""
        versions, optimizer = self.versions.state(), optimizer_state.by_weight(self.optimizer)
        corrections = self._correction.state() or [[]] * len(versions)
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
        corrections = [of["correction"] for of in mine]
        if any(corrections):
            device = masters[0].device
            self._correction.restore([[t.to(device) for t in tensors] for tensors in corrections])
