"""`DelayedOptimizer`: wraps the optimizer of any training loop, so that its updates come late."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from typing_extensions import override

from trainer.base.build import build
from trainer.base.errors import BadInput
from trainer.base.ranges import MAX_COUNT
from trainer.corrections.none import NoCorrection
from trainer.delayed.alike import CorrectionOfEach
from trainer.delayed.arm import correction_node, pipeline_node, schedule_of
from trainer.delayed.keeper import Gradient, Keeper, Options, Waiting
from trainer.delayed.kept_gradients import KeptGradients
from trainer.delayed.kept_weights import KeptWeights
from trainer.optimizers import state as optimizer_state
from trainer.optimizers.averaging import Averages, evaluated
from trainer.optimizers.observing import Observer
from trainer.stages.probe import NoProbe
from trainer.stages.update import corrected_update

SCHEDULED = ("lr", "betas", "momentum", "weight_decay")
"""Options of a group that schedulers set: a gradient that waits keeps those that it came with."""
SAME = ("delay", "keep", "pipeline", "correction")
"""Attributes that a state must have been saved with."""
COUNTED = ("num_taken", "largest_delay")
"""Attributes that a state restores."""
OWN = "delay_"
"""What the names of the wrapper's own tensors begin with, in the state of each weight."""


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
        _require_plain(optimizer)
        if keep not in ("weights", "gradients"):
            raise BadInput("keep", keep, "must be 'weights' or 'gradients'")
        if clip_norm is not None and not clip_norm > 0:
            raise BadInput("clip_norm", clip_norm, "must be larger than 0, or None to clip nothing")
        if correction is not None and num_updates is None:
            allowed = "is required with a correction, which is made for a number of updates"
            raise BadInput("num_updates", None, allowed)
        self.optimizer, self.delay, self.keep = optimizer, delay, keep
        self.pipeline = pipeline_node(delay, synchronous_start, synchronous_cooldown)
        self.correction = correction_node(error_feedback, correction)
        if delay == 0:  # nothing to correct, so nothing to remember
            self.correction = correction_node(0, None)
        self.num_updates, self._clip_norm = num_updates, clip_norm
        self._schedule = schedule_of(self.pipeline, num_updates)
        self._require_fitting()
        self.num_taken = 0
        """Batches whose gradient was taken: calls of `step`."""
        self.largest_delay = 0
        """The largest delay of an update so far, counted."""
        self._keeper: Keeper | None = None
        self._is_shown = False
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.param_groups = optimizer.param_groups

    def _require_fitting(self) -> None:
        """Raises BadInput for a correction that does not go with the optimizer, or with `keep`."""
        made = self._make_correction([self.delay])
        if made.needs_update and isinstance(self.optimizer, Averages):
            allowed = "must be 0 with an optimizer that averages its weights, not its updates"
            raise BadInput("error_feedback", self.correction.get("coefficient"), allowed)
        if made.reads_ahead and self.keep == "gradients":
            allowed = "must be 'weights' with a correction that predicts them"
            raise BadInput("keep", self.keep, allowed)

    def _make_correction(self, lags: Sequence[int]) -> NoCorrection:
        made: NoCorrection = build(self.correction, self.num_updates or MAX_COUNT, lags)
        return made

    def _version(self, batch: int) -> int:
        return self._schedule.version(batch, self.delay)

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
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        keeper = self._begin()
        gradient = [weight.grad for weight in keeper.weights]
        keeper.take(self.num_taken, gradient, self._options(), self._update)
        self.num_taken += 1
        return result

    def eval(self) -> None:
        """Puts the weights to evaluate into the model, those of W(t + 1); see `train`.

        For most optimizers these are the newest weights, for Schedule-Free its average. With
        `keep="gradients"` the model keeps the newest weights that are made.
        """
        if self._keeper is not None and not self._is_shown:
            newest = self._keeper.newest
            with self._stepping(newest):
                shown = evaluated(self.optimizer, newest)
            self._keeper.show(shown)
            self._is_shown = True

    def train(self) -> None:
        """Puts back the weights that the next forward and backward are to read."""
        if self._keeper is not None and self._is_shown:
            self._keeper.hide()
            self._is_shown = False

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
        """Of each weight, the state of the wrapped optimizer and, as `delay_…`, of the delay."""
        keeper = self._keeper
        if keeper is None:
            return dict(self.optimizer.state)
        own = zip(keeper.state(), self._correction.state(), strict=True)
        return {
            weight: {
                **self.optimizer.state.get(newest, {}),
                **{f"{OWN}{name}": tensor for of in both for name, tensor in of.items()},
            }
            for weight, newest, both in zip(keeper.weights, keeper.newest, own, strict=True)
        }

    @state.setter
    def state(self, state: object) -> None:
        """Ignores what torch's own constructor sets: the state is held in two places."""

    @override
    def state_dict(self) -> dict[str, Any]:
        """In torch's format: see `state`. Each group has a key `delayed` beside its options."""
        packed = super().state_dict()
        delays, options = Waiting([], []) if self._keeper is None else self._keeper.waiting
        names = {name for of in self.state.values() for name in of}
        for i, group in enumerate(packed["param_groups"]):
            group["delayed"] = {
                **{name: getattr(self, name) for name in (*SAME, *COUNTED)},
                "names": sorted(names),
                "delays": delays,
                "options": [of[i] for of in options],
            }
        return packed

    @override
    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned, weights included: the training goes on to the bit.

        The state of a bare optimizer is taken too: then the delay begins with the next step. Raises
        BadInput for a state with another delay or `keep`, and ValueError as torch does.
        """
        self._require_alike(state_dict)
        groups = [dict(group) for group in state_dict["param_groups"]]
        ours = [group.pop("delayed", dict.fromkeys(COUNTED, 0)) for group in groups]
        self._keeper, self._is_shown = None, False
        self.num_taken, self.largest_delay = (ours[0][name] for name in COUNTED)
        if self.num_taken:
            self._restore(groups, deepcopy(state_dict["state"]), deepcopy(ours))
        else:
            self.optimizer.load_state_dict({**state_dict, "param_groups": groups})
            self.param_groups = self.optimizer.param_groups

    def _restore(
        self,
        groups: Sequence[dict[str, Any]],
        states: Mapping[int, dict[str, Any]],
        ours: Sequence[dict[str, Any]],
    ) -> None:
        for name in ours[0]["names"]:
            if not any(name in of for of in states.values()):
                raise ValueError(
                    f"the state lacks {name}, which was saved: torch.distributed.checkpoint loads "
                    "what an optimizer has after one step; load the state by torch.load instead"
                )
        keeper, saved, own = self._begin(), {}, []
        ids = [(id_, group) for group in groups for id_ in group["params"]]
        for weight, (id_, group) in zip(keeper.newest, ids, strict=True):
            state = states.get(id_, {})
            saved[weight] = {
                "state": {name: of for name, of in state.items() if not name.startswith(OWN)},
                "options": {name: of for name, of in group.items() if name != "params"},
            }
            own.append(
                {name.removeprefix(OWN): of for name, of in state.items() if name.startswith(OWN)}
            )
        with self._stepping(keeper.newest):
            optimizer_state.restore(self.optimizer, saved)
        waiting = [list(of) for of in zip(*(of["options"] for of in ours), strict=True)]
        keeper.restore(self.num_taken, own, Waiting(ours[0]["delays"], waiting))
        self._correction.restore(own)

    def _require_alike(self, state_dict: Mapping[str, Any]) -> None:
        """Raises ValueError for a state of other groups, or of another delay."""
        groups = state_dict["param_groups"]
        sizes = [[len(group["params"]) for group in of] for of in (groups, self.param_groups)]
        if sizes[0] != sizes[1]:
            raise ValueError(f"the state has groups of {sizes[0]} weights, not of {sizes[1]}")
        own = groups[0].get("delayed", {})
        for name in SAME:
            if own.get(name, getattr(self, name)) != getattr(self, name):
                allowed = f"must be {own[name]}, with which the state was saved"
                raise BadInput(name, getattr(self, name), allowed)

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, before the first step; raises RuntimeError afterwards."""
        if self._keeper is not None:
            raise RuntimeError("weights can be added before the first step only")
        if param_group not in self.optimizer.param_groups:
            self.optimizer.add_param_group(param_group)
        else:  # the constructor adds those of the wrapped optimizer
            super().add_param_group(param_group)

    def _begin(self) -> Keeper:
        """The keeper, made at the first step: until then weights may be loaded, moved, sharded."""
        if self._keeper is None:
            weights = [weight for group in self.param_groups for weight in group["params"]]
            self._correction = CorrectionOfEach(weights, self.delay, self._make_correction)
            self._keeper = (
                KeptGradients(weights, self._version, self.delay)
                if self.keep == "gradients" or self.delay == 0
                else KeptWeights(
                    weights,
                    self._version,
                    self.delay,
                    reads_ahead=self._correction.reads_ahead,
                )
            )
            state = self.optimizer.state
            for weight, newest in zip(weights, self._keeper.newest, strict=True):
                if weight is not newest and weight in state:
                    state[newest] = state.pop(weight)
        return self._keeper

    def _options(self) -> Options:
        return [
            {key: deepcopy(group[key]) for key in SCHEDULED if key in group}
            for group in self.param_groups
        ]

    def _update(self, gradient: Gradient) -> Sequence[Tensor]:
        """Makes W(t + 1) of the newest weights; returns what late reads of it see."""
        batch, tensors, options, delay = gradient
        newest, delays = self._begin().newest, [delay] * len(tensors)
        self._correct(newest, tensors, delays)
        self.largest_delay = max(self.largest_delay, delay)
        factor = self._correction.lr_factor(batch, delay)
        with self._stepping(newest), self._using(options, factor):
            return corrected_update(
                self.optimizer, self._correction, newest, tensors, delays, NoProbe()
            )

    def _correct(
        self,
        weights: Sequence[nn.Parameter],
        gradients: Sequence[Tensor | None],
        delays: Sequence[int],
    ) -> None:
        """Corrects and clips the gradients, in place."""
        there = [gradient for gradient in gradients if gradient is not None]
        if self._correction.changes_gradients:
            if len(there) < len(gradients):
                raise RuntimeError("a correction of gradients needs one of every weight")
            self._correction.gradient(there, weights, delays)
        if self._clip_norm is not None:
            holders = [nn.Parameter(g, requires_grad=False) for g in there]
            for holder, gradient in zip(holders, there, strict=True):
                holder.grad = gradient
            clip_grad_norm_(holders, self._clip_norm)

    @contextmanager
    def _stepping(self, newest: Sequence[nn.Parameter]) -> Iterator[None]:
        """The wrapped optimizer has these weights while the context lasts, else the loop's."""
        own = [group["params"] for group in self.optimizer.param_groups]
        weights = iter(newest)
        for group, params in zip(self.optimizer.param_groups, own, strict=True):
            group["params"] = list(islice(weights, len(params)))
        try:
            yield
        finally:
            self.param_groups = self.optimizer.param_groups  # load_state_dict makes new ones
            for group, params in zip(self.param_groups, own, strict=True):
                group["params"] = params

    @contextmanager
    def _using(self, options: Options, factor: float) -> Iterator[None]:
        """The groups have these options, and `factor` times the learning rate, for one update."""
        current = self._options()
        for group, of in zip(self.param_groups, options, strict=True):
            group.update(of)
            if factor != 1.0:
                group["lr"] = group["lr"] * factor
        try:
            yield
        finally:
            for group, of in zip(self.param_groups, current, strict=True):
                group.update(of)


def _require_plain(optimizer: object) -> None:
    """Raises BadInput for what is no torch optimizer, or one that cannot be delayed."""
    name = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):
        raise BadInput("optimizer", name, "must be a torch.optim.Optimizer")
    if isinstance(optimizer, DelayedOptimizer):
        raise BadInput("optimizer", name, "is delayed already: pass the optimizer that it wraps")
    if isinstance(optimizer, Observer):
        allowed = "takes gradients of its own beside those of step(): only trials can delay it"
        raise BadInput("optimizer", name, allowed)
    if hasattr(optimizer, "eval") and not isinstance(optimizer, Averages):
        allowed = (
            "moves its weights in eval(): wrap it by trainer.optimizers.averaging.ScheduleFree"
        )
        raise BadInput("optimizer", name, allowed)
