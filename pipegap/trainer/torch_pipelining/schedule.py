"""`Schedule2BW`: PipeDream-2BW without a flush, for pipelines of torch.distributed.pipelining.

In time, on two ranks, with three microbatches; F1.0 is the forward of batch 1, microbatch 0:

    rank 0   F1.0     B0.2  n  F1.1     B1.0     F1.2     B1.1  U0 F2.0     B1.2  n  F2.1
                  ╳                 ╳                 ╳                 ╳
    rank 1   B0.2  n  F1.0     B1.0     F1.1     B1.1     F1.2     B1.2  U0 n  F2.0     B2.0

- ╳, sends and receives: F1.0 of rank 0 sends hidden states to F1.0 of rank 1, whose B0.2 sends
  their gradient to B0.2 of rank 0. A send starts right after its pass, and nobody waits for it to
  leave. Its receive was posted up to two passes before the one that reads it, which waits for it.
- n, the norm: the last backward of batch 0 has made its gradient whole on this rank, so its tied
  weights and then the norms of all ranks begin to be summed, between two passes. Nobody waits.
- U0, the update: it ends the call of `step` with batch 1. Now the sum, which had a batch's time, is
  waited for; `update` clips by it and steps, the correction follows, and W(1) is there. The first
  to read it is F2.0: batch 1 is on W(0), forward and backward, on all ranks.

A rank with more ranks behind it is more forwards ahead of its backwards, and has its n later.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from typing_extensions import override

from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.delayed.arm import correction_node, require_options
from pipegap.trainer.delayed.optimizer import untraced
from pipegap.trainer.torch_pipelining import refusals
from pipegap.trainer.torch_pipelining.late_update import LateUpdate, way_back
from pipegap.trainer.torch_pipelining.passes import BACKWARD, FORWARD, Passes, Unseen, WithoutFlush

TAKES_TARGET = "target" in signature(Schedule1F1B._initialize_stage).parameters  # not in 2.11


class Schedule2BW(WithoutFlush, Schedule1F1B):
    """Trains as Schedule1F1B does, but without its bubble: gradients are one update old.

    W(t+1) = W(t) − u_t − λ (u_t − u_{t−1}), where u_t is the whole change that `update` makes of
    W(t), from the gradient of batch t at W(max(0, t − 1)), and λ is `error_feedback`, the paper's 1
    by default: the update of a trial with `pipeline=pipedream_2bw` (docs/semantics.md).

    `step` of batch t returns while some of its microbatches have yet to go backward, on all stages
    but the last; they do so among the forwards of the next call. Losses and outputs are those of
    batch t. `step` and `drained` call `update()` once per batch and in order, when the gradient of
    the batch lies in the `.grad` of the stage's module: clip there with `clip_grad_norm_`, and step
    the optimizer and its scheduler. Evaluate, save and load in `with drained():`.

    - `error_feedback`, or `correction`, a class of `trainer.corrections` (or `functools.partial` of
      one and its options) with `num_updates`: as in `DelayedOptimizer`.
    - `synchronous_start`: how many updates are made without a delay, at first.
    - `slack`: each later stage is two microbatches behind in place of one, so that a message may
      take half as long as a forward and a backward before a rank waits.
    - `tied`: names of weights of this stage whose copies another stage has, on the first and the
      last stage, in one order: their gradients are added up, and they count once in the norm.
    - `twins`: two copies of the stage's module, made before it was wrapped and wrapped as it is.
      A module that is not compiled, sharded or of DDP needs none: it shows two sets of weights.
    - `trace`: whether every pass is timed, for `write_trace`.
    - `options`: what else Schedule1F1B takes.

    Raises BadInput, a ValueError, in one line that names the argument, for what cannot be used.
    """

    def __init__(
        self,
        stage: PipelineStage,
        n_microbatches: int,
        loss_fn: Callable[..., Tensor],
        *,
        update: Callable[[], object] | None = None,
        error_feedback: float = 1.0,
        correction: Callable[..., NoCorrection] | None = None,
        num_updates: int | None = None,
        synchronous_start: int = 0,
        slack: bool = False,
        tied: Sequence[str] = (),
        twins: Sequence[nn.Module] | None = None,
        trace: bool = False,
        **options: Any,
    ) -> None:
        per_stage = 2 if slack else 1
        refusals.require_usable(stage, n_microbatches, loss_fn, per_stage)
        require_options("weights", None, correction, num_updates)
        refusals.require_options(Schedule1F1B.__init__, options, refusals.OPTIONS)
        super().__init__(stage, n_microbatches, loss_fn, **options)
        self.update, self.newest = update, stage.submod
        self._divisor = torch.tensor(float(n_microbatches), device=stage.device)
        self._slack, self._synchronous_start = slack, synchronous_start
        node = correction_node(error_feedback, correction)
        self._late = LateUpdate(stage, twins, tied, node, num_updates)
        self.twins = self._late.versions.modules
        lead = per_stage * (stage.num_stages - 1 - stage.stage_index)
        self._passes = Passes(stage, n_microbatches, lead, self._late.versions, trace)
        # Before this forward of the next batch the gradient is whole, with those of tied copies.
        self._norm_at = max(lead, way_back(stage.num_stages)) if tied else lead
        self._unseen = Unseen(calls_hooks=not self._late.versions.are_leaves)

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clips, in `update`, by the norm over all stages, and returns the norm before.

        Its sum began a batch ago, so nobody waits. Raises RuntimeError outside of `update`.
        """
        return self._late.clip(max_norm)

    @override
    def step(self, *args: Any, **options: Any) -> Any:
        """Trains on a batch, as Schedule1F1B's does.

        After an exception the same batch may be tried again if it did nothing yet; else each later
        call raises RuntimeError.
        """
        return self._untraced_step(*args, **options)

    @untraced
    def _untraced_step(self, *args: Any, **options: Any) -> Any:
        self._require_whole()
        refusals.require_options(Schedule1F1B.step, options, refusals.OF_STEP)
        num_taken = self.num_taken
        try:
            return super().step(*args, **options)
        except BaseException as error:
            self._internal_losses.clear()
            if self.num_taken > num_taken:
                self._note(error)
            raise

    @override
    def _drain(self) -> None:
        with torch.enable_grad(), self._passes.between_drains():
            self._passes.run(self._drains[-1], self.num_taken, self._backward)
            if self.num_made < self.num_taken:
                self._drains += (self.num_taken,)
                self._late.begin_norm(self.num_made)
                self._make_update()
        self._passes.neighbours.flush()

    def state_dict(self) -> dict[str, Any]:
        """What must be saved in `drained()` beside the module and the optimizer: the number of
        updates, what the next batch computes on and what the correction remembers, by weight.
        """
        self._require_drained()
        return {"num_updates": self.num_made, **self._late.state(self.num_made)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned: the training goes on to the bit.

        The next `step` reads it, unchanged, so module and optimizer may be loaded before or after.
        Raises RuntimeError unless drained.
        """
        self._require_drained()
        self.num_taken = self.num_made = int(state_dict["num_updates"])
        self._drains = (self.num_taken,)
        self._late.loaded = state_dict

    @override
    def _step_microbatches(
        self,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        losses: list[Tensor] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """What torch's `step` and `eval` call with the microbatches of a batch, and with defaults
        of options that this class does not have."""
        of_loss: dict[str, Any] = {"loss_kwargs": loss_kwargs} if loss_kwargs else {}  # not in 2.11
        if not self._has_backward:
            self._require_drained()
            if self._passes.posted:
                raise RuntimeError("try the batch that failed again before you evaluate")
            arguments = arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs
            super()._step_microbatches(*arguments, **of_loss)
            # torch 2.11 would never prepare for a backward what it prepared for an evaluation.
            self._stage_forward_initialized = self._stage_backward_initialized
            return
        args, kwargs = self._check_inputs(arg_mbs, kwarg_mbs, target_mbs, losses)
        stage, batch, late = self._stage, self.num_taken, self._late
        refusals.require_eager(stage.device)
        late.begin(batch, self.num_made, is_synchronous=batch <= self._synchronous_start)
        refusals.require_trainable(self.update, late.versions.newest)
        target = {"target": target_mbs and target_mbs[0]} if TAKES_TARGET else {}
        self._initialize_stage(args[0], kwargs[0], **target, **of_loss)

        def forward(batch: int, i: int) -> None:
            if i == self._norm_at and self.num_made < batch:
                late.begin_norm(self.num_made)
            output = stage.forward_one_chunk(i, args[i], kwargs[i], return_outputs)
            if not stage.is_last:
                self._unseen.require_alike(output, stage)
            self._passes.neighbours.send(FORWARD, i)
            self._maybe_compute_loss(stage, output, target_mbs, i, **of_loss)

        self.num_taken += 1
        try:
            with late.sums.unscaled:
                self._passes.run(self._drains[-1], self.num_taken, self._backward, forward)
        except BaseException:
            # Another rank that knows of this batch goes on with it: then it cannot be tried again.
            if not self._passes.are_known:  # all is left as it was before this batch
                self.num_taken -= 1
                for weight in late.versions.weights(batch):
                    weight.grad = None
            raise
        if self.num_made < batch:
            self._make_update()
        self._update_losses(stage, losses)
        if self.num_taken <= self._synchronous_start:
            self._drain()

    @override
    def _initialize_stage(self, *arguments: Any, **options: Any) -> None:
        """By a forward that the user does not notice, of the module that the next batch has."""
        versions, trains = self._late.versions, self._has_backward
        if (self._stage_forward_initialized, self._stage_backward_initialized) == (True, trains):
            return
        module = versions.module(self.num_taken) if trains else versions.whole
        try:
            with refusals.Replaced(self._stage, "submod", self._unseen.of(module)):
                super()._initialize_stage(*arguments, **options)
        finally:
            versions.release()

    def _backward(self, batch: int, i: int) -> None:
        stage, is_last = self._stage, i == self._n_microbatches - 1
        stage.backward_one_chunk(i, loss=self._maybe_get_loss(stage, i), last_backward=is_last)
        self._passes.neighbours.send(BACKWARD, i)
        if is_last:
            stage.perform_reduce_grad(1)  # that would divide weight by weight
            self._late.complete(batch, self._divisor if self.scale_grads else None)

    def _make_update(self) -> None:
        """At the end of the next batch, on all ranks alike: its forwards needed no new weights.

        As in a loop that makes it after the `with torch.autocast` around `step`.
        """
        num_made, timed, device = self.num_made, self._passes.timed, self._stage.device.type
        norm = timed("wait U", num_made, 0, self._late.sums.take, num_made)
        is_within = torch.is_autocast_enabled(device)
        with torch.autocast(device, enabled=False) if is_within else nullcontext():
            timed("U", num_made, 0, self._late, num_made, norm, self.update)
        self.num_made += 1
