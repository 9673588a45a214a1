"""One stage under delay: W(t+1) = W(t) − u_t(∇loss(W(version(t)); batch t)), then a correction.

All that docs/semantics.md asks of a stage is here, once; executors only order the calls.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipegap.trainer.base.resources import on_cpu
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.optimizers import state as optimizer_state
from pipegap.trainer.optimizers.averaging import evaluated
from pipegap.trainer.optimizers.routing import BALANCE, Kind, Parameters
from pipegap.trainer.schedules.operations import Op
from pipegap.trainer.stages.backward import Microbatch, Sums
from pipegap.trainer.stages.in_parts import correction_in_parts
from pipegap.trainer.stages.probe import Comparison, NoProbe, Probe
from pipegap.trainer.stages.update import corrected_update, dry_update, look_ahead, step
from pipegap.trainer.stages.versions import Versions


class Stage:
    """A consecutive part of the model with its versions, gradients and delayed update.

    `kinds` has the kind of each weight by name. `tied` names the weights that another stage holds
    too. Weights are read `lag` versions behind the newest, tied ones `tied_lag`; `make_correction`
    gets the lag of each weight. `lr_factor` maps update t to a factor on every group's peak
    learning rate. Evaluations are in `eval_dtype`, or the master's. `microbatch` makes what is kept
    of a microbatch, from its input and the leaves that its forward reads.
    """

    def __init__(
        self,
        module: nn.Module,
        kinds: Mapping[str, Kind],
        make_optimizer: Callable[[Parameters], Optimizer],
        make_correction: Callable[[Sequence[int]], NoCorrection],
        lr_factor: Callable[[int], float],
        *,
        lag: int,
        tied: frozenset[str],
        tied_lag: int,
        dtype: torch.dtype,
        eval_dtype: torch.dtype | None = None,
        microbatch: Callable[[Tensor, Sequence[nn.Parameter]], Microbatch] = Microbatch,
        run: Callable[[nn.Module], Callable[[Tensor], Tensor]] = lambda module: module,
    ) -> None:
        names = [name for name, _ in module.named_parameters()]
        self.is_tied = [name in tied for name in names]
        self.lags = [tied_lag if is_tied else lag for is_tied in self.is_tied]
        shapes = [weight.shape for weight in module.parameters()]
        self._kinds = [kinds[name] for name in names]
        self._correction = correction_in_parts(make_correction, self.lags, self._kinds, shapes)
        self.versions = self._make_versions(module, dtype)
        self.optimizer = make_optimizer(list(zip(self._kinds, self.versions.master, strict=True)))
        groups = self.optimizer.param_groups
        places = {weight: i for i, weight in enumerate(self.versions.master)}
        self._peak_lrs = [group["lr"] for group in groups]
        self._members = [[places[weight] for weight in group["params"]] for group in groups]
        self.dtype, self.eval_dtype = dtype, eval_dtype or self.versions.master[0].dtype
        self._lr_factor, self._module, self._run = lr_factor, module, run(module)
        self._probe = NoProbe()
        self._microbatch = microbatch
        self._in_flight: dict[tuple[int, int, int], Microbatch] = {}
        self._read: dict[int, list[int]] = {}
        self._sums = Sums(self.versions.master[0].dtype)

    def _make_versions(self, module: nn.Module, dtype: torch.dtype) -> Versions:
        reads_ahead = self._correction.reads_ahead
        return Versions(module, self.lags, dtype, reads_ahead=reads_ahead)

    @property
    def slots(self) -> list[str | None]:
        """For each weight the name of its slot in the norm of the gradient; None for the
        pseudo-gradients of balance biases, which are not clipped either."""
        pairs = zip(self.versions.names, self._kinds, strict=True)
        return [None if kind == BALANCE else name for name, kind in pairs]

    @property
    def lr(self) -> float:
        """Learning rate of the last update, of the first parameter group."""
        return self.optimizer.param_groups[0]["lr"]

    def forward(
        self,
        op: Op,
        x: Tensor,  # tokens [batch, seq], or hidden states [batch, seq, hidden]
        loss: Callable[[Tensor], Tensor] | None = None,
        replica: int = 0,
    ) -> Tensor:
        """Runs the op's version on `x`; the last stage returns `loss` of its output.

        `replica` tells data-parallel replicas apart that share these weights (emulation).
        """
        # Kept until the update: the delay of each gradient is counted from what was read.
        self._read[op.batch] = self._versions_of(op)
        leaves = self.versions.bind(self._read[op.batch], op.batch)
        microbatch = self._microbatch(x, leaves)
        output = microbatch.forward(self._run, loss)
        self._in_flight[op.batch, op.microbatch, replica] = microbatch
        return output

    def backward_input(
        self,
        op: Op,
        gradient: Tensor | None,  # of the output, [batch, seq, hidden]; None on the last stage
        replica: int = 0,
    ) -> Tensor | None:
        """Returns the gradient of the loss by this microbatch's input; None for tokens."""
        # Recomputation of activations reads the module again, and must find this version there.
        leaves = self.versions.bind(self._versions_of(op), op.batch)
        return self._in_flight[op.batch, op.microbatch, replica].backward_input(gradient, leaves)

    def backward_weights(self, op: Op, replica: int = 0) -> None:
        """Adds up this microbatch's gradients in fp32; to be called after its `backward_input`."""
        gradients = self._in_flight.pop((op.batch, op.microbatch, replica)).gradients()
        self._sums.add(replica, gradients)

    def take_gradients(self) -> Sequence[Tensor]:
        """Returns the finished batch's gradients, summed over microbatches, then over replicas."""
        return self._sums.take()

    @torch.no_grad()
    def correct(self, batch: int, gradients: Sequence[Tensor]) -> None:
        """Lets the correction change the raw gradients, averaged over the whole batch, in place."""
        self._probe.raw(gradients)
        delays = self._delays(batch)
        if gradients[0].is_cuda:  # on a CPU nothing has to travel to the host
            self._correction.look_back(delays)
        self._correction.gradient(gradients, self.versions.master, delays)
        self._probe.corrected(gradients)

    def update(self, batch: int, gradients: Sequence[Tensor]) -> None:
        """Makes W(t+1) from W(t) and the clipped gradients of batch t, one tensor per weight."""
        delays = self._start_update(batch)
        # The master is stepped where version t + 1 will be read: version t stays as it was.
        weights = self.versions.open()
        one_step, probe = partial(step, self.optimizer, weights, gradients), self._probe
        predicted = corrected_update(one_step, self._correction, weights, delays, probe=probe)
        # Before the copies of version t + 1 are made: they are of what is read next.
        self._look_ahead(batch)
        self.versions.close(predicted)

    def _look_ahead(self, batch: int) -> None:
        rate, weights = self.lr / self._peak_lrs[0], self.versions.master
        look_ahead(self.optimizer, self._correction, weights, batch, rate)

    def evaluated(self) -> Sequence[Tensor]:
        """The tensors to evaluate in place of the newest weights; most often these themselves."""
        return self._correction.evaluated(evaluated(self.optimizer, self.versions.master))

    def probe(self, batch: int, gradients: Sequence[Tensor]) -> None:
        """Records what these fresh gradients would make, to compare the next update with it."""
        self._start_update(batch)  # at the rates that a fresh gradient gets
        self._probe = Probe(dry_update(self.optimizer, self.versions.master, gradients))

    def take_comparison(self) -> Comparison:
        """How the last update compares with the probe's, by weight; empty if it had no probe."""
        probe, self._probe = self._probe, NoProbe()
        products = zip(self.versions.names, self._kinds, probe.results(), strict=False)
        return {name: (kind, sums) for name, kind, sums in products if kind != BALANCE}

    def _start_update(self, batch: int) -> list[int]:
        """Sets the learning rates of a batch's update; returns the delays of its gradients."""
        delays = self._delays(batch)
        del self._read[batch]  # this was their last use
        # A group has one learning rate, so it counts as late as its latest weight.
        scheduled, groups = self._lr_factor(batch), self.optimizer.param_groups
        for group, peak, members in zip(groups, self._peak_lrs, self._members, strict=True):
            factor = self._correction.lr_factor(batch, max(delays[i] for i in members))
            group["lr"] = peak * scheduled * factor
        return delays

    def _versions_of(self, op: Op) -> list[int]:
        """The version of each weight that the operation reads."""
        return [op.tied_version if is_tied else op.version for is_tied in self.is_tied]

    def _delays(self, batch: int) -> list[int]:
        return [batch - version for version in self._read[batch]]

    @torch.no_grad()
    def evaluate(self, x: Tensor) -> Tensor:
        """Returns the output for `x`, [batch, …], of the weights to evaluate, in `eval_dtype`."""
        self.versions.bind_others(self.evaluated(), self.eval_dtype)
        return self._run(x)

    def weights(self) -> dict[str, Tensor]:
        """The weights that are evaluated and exported, by name, on the CPU."""
        tensors = [w.detach() for w in self.evaluated()]
        return dict(zip(self.versions.names, on_cpu(tensors), strict=True))

    def state(self) -> dict[str, dict[str, Any]]:
        """What the stage needs to resume after a drain, by weight: the cut may change."""
        versions, optimizer = self.versions.state(), optimizer_state.by_weight(self.optimizer)
        return {
            name: {**versions[name], "optimizer": optimizer[master], "correction": correction}
            for name, master, correction in zip(
                self.versions.names, self.versions.master, self._correction.state(), strict=True
            )
        }

    def restore(self, state: Mapping[str, dict[str, Any]]) -> None:
        """Restores what `state` returned; the given state may hold other stages' weights too."""
        states, masters = [state[name] for name in self.versions.names], self.versions.master
        self.versions.restore(states)
        saved = {w: weight["optimizer"] for w, weight in zip(masters, states, strict=True)}
        optimizer_state.restore(self.optimizer, saved)
        device = masters[0].device
        corrections = [weight["correction"].items() for weight in states]
        self._correction.restore([{k: v.to(device) for k, v in items} for items in corrections])
