"""`DelayedOptimizer`: wraps the optimizer of any training loop, so that its updates come late."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from trainer.base.build import build
from trainer.base.ranges import MAX_COUNT
from trainer.corrections.none import NoCorrection
from trainer.delayed import arm, packing
from trainer.delayed.copies import alike
from trainer.delayed.keeper import Gradient, Keeper, KeptGradients, Waiting
from trainer.delayed.kept_weights import KeptWeights
from trainer.delayed.update import has_average, make_update, options_of, stepping, to_evaluate
from trainer.optimizers import state as optimizer_state
from trainer.optimizers.averaging import HasModes
from trainer.stages.in_parts import CorrectionInParts

SAME = ("delay", "keep", "pipeline", "correction")
"""Attributes that a state must have been saved with."""
COUNTED = ("num_taken", "largest_delay")
"""Attributes that a state restores."""


class DelayedOptimizer(Optimizer):
    """Makes the updates of `optimizer`, any torch optimizer, from gradients that are `delay` old.

    Update t is W(t+1) = W(t) − u_t − λ (u_t − u_{t−1}), where u_t is the whole change that
    `optimizer` makes of W(t) with the gradient of batch t at W(max(0, t − delay)), and λ is
    `error_feedback`: the update of a trial (docs/semantics.md), by the same code. The loop stays as
    it is: `zero_grad`, forward, backward, clip, `step`, schedulers. A `delay` of 0 is the bare
    optimizer, for the synchronous run of a comparison.

    `keep` says how the delay is made. Both ways make the same updates, to the bit:

    - "weights": `step` leaves W(t + 1 − delay) in the model, for the next forward and backward, and
      keeps W(t + 1) itself. It takes `delay` more sets of weights. Evaluate and save between
      `eval()` and `train()`, or in `with newest():`, where the model has W(t + 1).
    - "gradients": for loops and optimizers whose weights must not be exchanged. Gradients wait and
      are applied `delay` steps later, with the learning rate that they came with. It takes `delay`
      sets of gradients, what you evaluate is W(t + 1 − delay), and the last updates are made by
      `finish()`. (A learning rate that depends on the loss sees the older weights' loss.)

    `correction` takes the place of Error Feedback: a class of `trainer.corrections`, or
    `functools.partial` of one and its options. One that changes gradients acts before the clip in a
    trial: give the norm as `clip_norm` and do not clip in the loop. (Its norm is added up in the
    order of the optimizer's weights: equal to a trial's but for rounding.)

    The first `synchronous_start` and the last `synchronous_cooldown` updates are not delayed: a
    number of updates, or, as a float, a share of `num_updates`, all updates of the training.

    Raises BadInput, a ValueError, in one line that names the argument, for what cannot be used.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        delay: int = 1,
        error_feedback: float = 1.0,
        *,
        keep: Literal["weights", "gradients"] = "weights",
        correction: Callable[..., NoCorrection] | None = None,
        clip_norm: float | None = None,
        synchronous_start: float = 0,
        synchronous_cooldown: float = 0,
        num_updates: int | None = None,
    ) -> None:
        arm.require_plain(optimizer, DelayedOptimizer)
        arm.require_options(keep, clip_norm, correction, num_updates)
        self.optimizer, self.delay, self.keep = optimizer, delay, keep
        self.pipeline = arm.pipeline_node(delay, synchronous_start, synchronous_cooldown)
        self.correction = arm.correction_node(error_feedback, correction)
        if delay == 0:  # nothing to correct, so nothing to remember
            self.correction = arm.correction_node(0, None)
        self.num_updates, self._clip_norm = num_updates, clip_norm
        self._schedule = arm.schedule_of(self.pipeline, num_updates)
        self._make_correction = partial(build, self.correction, num_updates or MAX_COUNT)
        made, coefficient = self._make_correction([delay]), self.correction.get("coefficient")
        arm.require_fitting(made, optimizer, keep, coefficient)
        self.num_taken = 0
        """Batches whose gradient was taken: calls of `step`."""
        self.largest_delay = 0
        """The largest delay of an update so far, counted."""
        self._keeper: Keeper | None = None
        self._is_shown = False
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.param_groups = optimizer.param_groups

    @torch.no_grad()
    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the gradients of a batch and makes the update that is due.

        Afterwards the model has the weights that the next forward and backward are to read. Returns
        what `closure` returns, which may compute the gradients. Raises RuntimeError between
        `eval()` and `train()`, after `num_updates` steps, and if somebody else changed the weights.
        """
        if self._is_shown:
            raise RuntimeError("the model has the weights to evaluate: call train() before step()")
        if self.num_updates is not None and self.num_taken >= self.num_updates:
            raise RuntimeError(f"num_updates={self.num_updates} are made: the training was longer")
        with torch.enable_grad():
            result = None if closure is None else closure()
        keeper = self._begin()
        gradient = [weight.grad for weight in keeper.weights]
        keeper.take(self.num_taken, gradient, options_of(self.optimizer), self._update)
        self.num_taken += 1
        return result

    def eval(self) -> None:
        """Puts the weights to evaluate, of W(t + 1), into the model; see `train`.

        Most optimizers are evaluated at W(t + 1) itself, one with an `eval()` of its own where that
        moves it. With `keep="gradients"` this is of the newest weights that are made.
        """
        if self._is_shown or (self._keeper is None and not has_average(self.optimizer)):
            return
        self.train()
        keeper = self._begin()
        keeper.show(to_evaluate(self.optimizer, keeper.newest, self.num_taken - self.num_waiting))
        self._is_shown = True

    def train(self) -> None:
        """Puts back the weights that the next forward and backward are to read, to the bit."""
        if self._keeper is not None and self._is_shown:
            self._keeper.hide()
            self._is_shown = False
        elif isinstance(self.optimizer, HasModes) and not isinstance(self._keeper, KeptWeights):
            self.optimizer.train()

    @contextmanager
    def newest(self) -> Iterator[None]:
        """`eval()` while the context lasts."""
        was_shown = self._is_shown
        self.eval()
        try:
            yield
        finally:
            if not was_shown:
                self.train()

    @property
    def num_waiting(self) -> int:
        """Gradients that were taken and not applied yet, with `keep="gradients"`."""
        return 0 if self._keeper is None else len(self._keeper.waiting.options)

    def finish(self) -> None:
        """Makes the updates that wait and puts W(T) into the model, at the end of the training.

        It may be left out if `num_updates` was given. A training that goes on from here is drained:
        its next batch is not delayed.
        """
        self.train()
        if self._keeper is not None:
            self._keeper.finish(self._update)

    @property
    def state(self) -> Any:
        """The state of each weight: the wrapped optimizer's, and the delay's as `delay_…`."""
        keeper = self._keeper
        if keeper is None:
            return dict(self.optimizer.state)
        own = zip(keeper.state(), self._correction.state(), strict=True)
        return {
            weight: packing.joined(self.optimizer.state.get(newest, {}), tensors)
            for weight, newest, tensors in zip(keeper.weights, keeper.newest, own, strict=True)
        }

    @state.setter
    def state(self, state: object) -> None:
        """Ignores what torch's own constructor sets: the state is held in two places."""

    @override
    def state_dict(self) -> dict[str, Any]:
        """In torch's format: see `state`. Each group has a key `delayed` beside its options."""
        packed = super().state_dict()
        waiting = Waiting([], []) if self._keeper is None else self._keeper.waiting
        names = {name for tensors in self.state.values() for name in tensors}
        packing.add_delayed(packed, names, self._attributes(SAME + COUNTED), waiting)
        return packed

    @override
    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned, weights included: the training goes on to the bit.

        The state of a bare optimizer is taken too: then the delay begins with the next step. Raises
        BadInput for a state with another delay or `keep`, and ValueError as torch does.
        """
        packing.require_alike(state_dict, self.param_groups, self._attributes(SAME))
        self._keeper, self._is_shown = None, False
        for name in COUNTED:
            setattr(self, name, packing.delayed_of(state_dict).get(name, 0))
        if self.num_taken or packing.has_own(state_dict):
            self._restore(state_dict)
        else:
            self.optimizer.load_state_dict(packing.without_delayed(state_dict))
        self.param_groups = self.optimizer.param_groups  # it made new ones

    def _restore(self, state_dict: Mapping[str, Any]) -> None:
        saved, keeper = packing.take_apart(state_dict), self._begin()
        with stepping(self.optimizer, keeper.newest):
            wrapped = dict(zip(keeper.newest, saved.wrapped, strict=True))
            optimizer_state.restore(self.optimizer, wrapped)
        keeper.restore(self.num_taken, saved.own, saved.waiting)
        self._correction.restore(saved.own)

    def _attributes(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group as torch does. Raises RuntimeError after the first step."""
        if self._keeper is not None:
            raise RuntimeError("weights can be added before the first step only")
        # The constructor adds those of the wrapped optimizer. `in` would compare their tensors.
        if any(param_group is group for group in self.optimizer.param_groups):
            super().add_param_group(param_group)
        else:
            self.optimizer.add_param_group(param_group)

    def _begin(self) -> Keeper:
        """The keeper, made at the first step: until then weights may be loaded, moved, sharded."""
        if self._keeper is None:
            weights = [weight for group in self.param_groups for weight in group["params"]]
            lag, version = self.delay, partial(self._schedule.version, lag=self.delay)
            lags, kinds = [lag] * len(weights), alike(weights)
            self._correction = CorrectionInParts(self._make_correction, lags, kinds)
            if self.keep == "gradients" or lag == 0:
                self._keeper = KeptGradients(weights, version, lag)
            else:
                ahead = self._correction.reads_ahead
                self._keeper = KeptWeights(weights, version, lag, reads_ahead=ahead)
            state = self.optimizer.state
            for weight, newest in zip(weights, self._keeper.newest, strict=True):
                if weight is not newest and weight in state:
                    state[newest] = state.pop(weight)
        return self._keeper

    def _update(self, gradient: Gradient) -> Sequence[Tensor]:
        """Makes W(t + 1) of the newest weights; returns what late reads of it see."""
        self.largest_delay = max(self.largest_delay, gradient.delay)
        newest = self._begin().newest
        return make_update(self.optimizer, self._correction, newest, gradient, self._clip_norm)
