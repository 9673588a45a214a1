"""`Schedule2BW`: PipeDream-2BW without a flush, for pipelines of torch.distributed.pipelining."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from typing_extensions import override

from trainer.corrections.none import NoCorrection
from trainer.delayed.arm import correction_node, require_options
from trainer.torch_pipelining import refusals
from trainer.torch_pipelining.neighbours import BACKWARD, FORWARD, Neighbours
from trainer.torch_pipelining.passes import Given, Move, rest, window
from trainer.torch_pipelining.private import accepted, kept_by_forwards
from trainer.torch_pipelining.recorder import PassRecorder
from trainer.torch_pipelining.update import LateUpdate


class Schedule2BW(Schedule1F1B):
    """Trains as Schedule1F1B does, but without its bubble: gradients are one update old.

    W(t+1) = W(t) − u_t − λ (u_t − u_{t−1}), where u_t is the whole change that `update` makes of
    W(t), from the gradient of batch t at W(max(0, t − 1)), and λ is `error_feedback`: the update of
    a trial with `pipeline=pipedream_2bw` (docs/semantics.md), by the same code.

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
      For a module that is not compiled, sharded or of DDP they are made here.
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
        error_feedback: float = 0.0,
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
        super().__init__(stage, n_microbatches, loss_fn, **options)
        self.update, self.newest = update, stage.submod
        self.num_taken = 0
        """Batches that `step` took, so the number of the next one."""
        self.num_made = 0
        """Updates that were made."""
        self._lead = per_stage * (stage.num_stages - 1 - stage.stage_index)
        self._slack, self._synchronous_start = slack, synchronous_start
        node = correction_node(error_feedback, correction)
        self._late = LateUpdate(stage, twins, tied, node, num_updates)
        self._neighbours = Neighbours(stage)
        self._recorder = PassRecorder(stage, is_tracing=trace)
        # Before this forward of the next batch the gradient is whole, with those of tied copies.
        of_pair = per_stage * (stage.num_stages - 1) // 2 + 1
        self._norm_at = max(self._lead, of_pair) if tied else self._lead
        self._given = Given([], [], None, {}, False)
        self._waiting = 0  # microbatches of the last batch that went forward only
        self._in_flight: dict[int, Any] = {}  # their activations, which torch's `step` would drop

    # ---- what a training loop calls beside `step` and `eval` ------------------------------------

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clips, in `update`, by the norm over all stages, and returns the norm before.

        Its sum over the stages began a batch ago, so nobody waits for it. Raises RuntimeError
        outside of `update`.
        """
        return self._late.clip(max_norm)

    @contextmanager
    def drained(self) -> Iterator[nn.Module]:
        """Finishes every batch and update in flight; yields the stage's module, the newest weights.

        It takes the time of a bubble and changes no number of the training.
        """
        self._drain()
        yield self.newest

    def state_dict(self) -> dict[str, Any]:
        """What must be saved in `drained()` beside the module and the optimizer: the number of
        updates, the weights that the next batch computes on, and what the correction remembers, by
        names of weights.
        """
        refusals.require_drained(self._is_drained)
        return {"num_updates": self.num_made, **self._late.state(self.num_made)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned, after module and optimizer were loaded: the training
        goes on to the bit. Raises RuntimeError unless drained.
        """
        refusals.require_drained(self._is_drained)
        self.num_taken = self.num_made = int(state_dict["num_updates"])
        self._late.restore(self.num_made, state_dict)

    def write_trace(self, folder: Path) -> None:
        """Writes, in `drained()`, trace.json for Perfetto and timeline.svg, as a trial does: what
        each rank did when, beside its simulation. All ranks of the pipeline call it, and the first
        one writes. Raises BadInput without `trace=True`.
        """
        refusals.require_drained(self._is_drained)
        self._recorder.leave(
            folder, self.num_taken, self._n_microbatches, self._synchronous_start, slack=self._slack
        )

    # ---- one batch, and an update ---------------------------------------------------------------

    @override
    def _step_microbatches(
        self,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        losses: list[Tensor] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """What torch's `step` and `eval` call with the microbatches of a batch."""
        # torch 2.11 knows no loss_kwargs: it neither gives nor takes them.
        of_loss = {} if loss_kwargs is None else {"loss_kwargs": loss_kwargs}
        if not self._has_backward:
            refusals.require_drained(self._is_drained)
            super()._step_microbatches(
                arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, **of_loss
            )
            # torch 2.11 would never prepare for a backward what it prepared for an evaluation.
            self._stage_forward_initialized = self._stage_backward_initialized
            return
        args, kwargs = self._check_inputs(arg_mbs, kwarg_mbs, target_mbs, losses)
        self._given = Given(args, kwargs, target_mbs, of_loss, return_outputs)
        refusals.require_trainable(self.update, self.newest)
        self._recorder.begin(self.num_taken)
        self._begin(self.num_taken)
        self.num_taken += 1
        self._run(window(self.num_taken - 1, self._n_microbatches, self._lead, self._waiting))
        self._waiting = self._lead
        if self.num_made < self.num_taken - 1:
            self._make_update()
        self._update_losses(self._stage, losses)
        if self.num_taken <= self._synchronous_start:
            self._drain()

    def _begin(self, batch: int) -> None:
        """The stage gets its twins and buffers, at the first batch and after an evaluation.

        FSDP2 keeps the weights whole that an evaluation gathered, and no optimizer steps those.
        """
        for part in self.newest.modules():
            if isinstance(part, FSDPModule):
                part.reshard()
        if batch <= self._synchronous_start or not self._late.twins.is_started:
            self._late.start(batch)
        self._stage.submod = self._late.twins.module(batch)
        given = self._given
        target = None if given.targets is None else given.targets[0]
        of_loss = accepted(self._initialize_stage, target=target, **given.of_loss)
        self._initialize_stage(given.args[0], given.kwargs[0], **of_loss)

    def _run(self, passes: Sequence[Move]) -> None:
        """Makes each pass in turn, and posts before it computes what the next one receives."""
        stage = self._stage
        kept = kept_by_forwards(stage)
        kept.update(self._in_flight)
        receive = self._neighbours.receive
        arriving = [receive(this.kind, this.microbatch) for this in passes[:1]]
        for this, following in zip_longest(passes, passes[1:]):
            if following is not None:
                arriving.append(receive(following.kind, following.microbatch))
            with self._recorder.span(f"wait {this.kind}", this.batch, this.microbatch):
                for work in arriving.pop(0):
                    work.wait()
            stage.submod = self._late.twins.module(this.batch)
            make = self._forward if this.kind == FORWARD else self._backward
            with self._recorder.span(*this):
                make(this)
        self._in_flight = dict(kept)
        stage.submod = self.newest

    def _forward(self, this: Move) -> None:
        stage, given, i = self._stage, self._given, this.microbatch
        if i == self._norm_at and self.num_made < this.batch:
            self._late.begin_norm(this.batch - 1)
        output = stage.forward_one_chunk(i, given.args[i], given.kwargs[i], given.keep_outputs)
        self._neighbours.send(FORWARD, i)
        with refusals.no_grad_scaler():
            self._maybe_compute_loss(stage, output, given.targets, i, **given.of_loss)

    def _backward(self, this: Move) -> None:
        stage, i = self._stage, this.microbatch
        is_last = i == self._n_microbatches - 1
        stage.backward_one_chunk(i, loss=self._maybe_get_loss(stage, i), last_backward=is_last)
        self._neighbours.send(BACKWARD, i)
        if is_last:
            stage.perform_reduce_grad(self._n_microbatches if self.scale_grads else 1)
            self._late.begin_sums(this.batch)

    def _make_update(self) -> None:
        """At the end of the next batch, on all ranks alike: its forwards needed no new weights."""
        assert self.update is not None
        with self._recorder.span("wait U", self.num_made):
            self._late.await_norm(self.num_made)
        with self._recorder.span("U", self.num_made):
            self._late(self.num_made, self.update)
        self.num_made += 1

    @property
    def _is_drained(self) -> bool:
        return self.num_made == self.num_taken

    def _drain(self) -> None:
        with torch.enable_grad():
            self._run(rest(self.num_taken - 1, self._n_microbatches, self._waiting))
            self._waiting = 0
            if not self._is_drained:
                self._late.begin_norm(self.num_made)
                self._make_update()
        self._neighbours.flush()
        self._recorder.end(self.num_taken)
