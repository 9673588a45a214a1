"""`DelayedOptimizer`: wraps the optimizer of any training loop, so that its updates come late."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from typing_extensions import override

from pipegap.trainer.base.build import build
from pipegap.trainer.base.flat import by_device
from pipegap.trainer.base.ranges import MAX_COUNT
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.delayed import arm, around
from pipegap.trainer.delayed.around import Around, Progress
from pipegap.trainer.delayed.keeper import (
    Gradient,
    Keeper,
    KeptGradients,
    KeptWeights,
    Settings,
    Waiting,
)
from pipegap.trainer.optimizers import state as optimizer_state
from pipegap.trainer.optimizers.averaging import HasModes, averages, evaluated
from pipegap.trainer.stages.in_parts import CorrectionInParts
from pipegap.trainer.stages.update import Gradients, Weights, corrected_update, look_ahead, step

SAME = ("delay", "keep", "pipeline", "correction")
"""Attributes that a state must have been saved with."""
COUNTED = ("num_taken", "largest_delay")
"""Attributes that a state restores."""
Method = TypeVar("Method", bound=Callable[..., Any])


def untraced(method: Method) -> Method:
    """Makes torch.compile run a method as it is: a trace would lose attributes that it sets, and
    then no gradient would be late, or no update be made."""
    reason = "a late update has no graph: compile the model, or the step of the inner optimizer"
    disabled: Method = torch.compiler.disable(method, reason=reason)
    return disabled


class DelayedOptimizer(Around):
    """Makes the updates of `optimizer`, any torch optimizer, from gradients that are `delay` old.

    Update t is W(t+1) = W(t) − u_t − λ (u_t − u_{t−1}), where u_t is the whole change that
    `optimizer` makes of W(t) with the gradient of batch t at W(max(0, t − delay)), and λ is
    `error_feedback`: the update of a trial (docs/semantics.md), by the same code. The loop stays as
    it is: `zero_grad`, forward, backward, clip, `step`, schedulers. A `delay` of 0 is the bare
    optimizer, for the synchronous run of a comparison; but a `correction` that looks ahead acts.

    It is the wrapped optimizer to everybody who looks: groups, state and defaults are the same
    objects, the weights that it steps are the loop's own, and hooks, copies, pickles, closures and
    groups added later do as torch promises.

    `keep` says how the delay is made. Both ways make the same updates, to the bit:

    - "weights": `step` leaves W(t + 1 − delay) in the model, for the next forward and backward, and
      keeps W(t + 1) itself. It takes `delay` more sets of weights. Evaluate and save between
      `eval()` and `train()`, or in `with newest():`, where the model has W(t + 1). The next step
      refuses what others wrote to weights; writes to `weight.data`, which torch does not count, are
      lost.
    - "gradients": for loops and optimizers whose weights must not be exchanged. Gradients wait and
      are applied `delay` steps later, with the groups' options and the `requires_grad` flags that
      the loop had set when they came. Any other setting of a loop acts at the next update. It takes
      `delay` sets of gradients, what you evaluate is W(t + 1 − delay), and the last updates are
      made by `finish()`. (A learning rate that depends on the loss sees the older weights' loss.)

    `correction` takes the place of Error Feedback: a class of `trainer.corrections`, or
    `functools.partial` of one and its options. One that changes gradients acts before the clip in a
    trial: give the norm as `clip_norm` and do not clip in the loop. (Its norm is added up in the
    order of the optimizer's weights: equal to a trial's but for rounding.)

    The first `synchronous_start` and the last `synchronous_cooldown` updates are not delayed: a
    number of updates, or, as a float, a share of `num_updates`, all updates of the training.

    Raises BadInput, a ValueError, in one line that names the argument, for what cannot be used; an
    optimizer whose `step` needs a closure is such, as it takes more gradients than a batch's one.
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
        arm.require_plain(optimizer, DelayedOptimizer, delay)
        arm.require_options(keep, clip_norm, correction, num_updates)
        super().__init__(optimizer)
        self.delay, self.keep = delay, keep
        self.pipeline = arm.pipeline_node(delay, synchronous_start, synchronous_cooldown)
        self.correction = arm.correction_node(error_feedback, correction)
        self.num_updates, self._clip_norm = num_updates, clip_norm
        self._schedule = arm.schedule_of(self.pipeline, num_updates)
        blank = self._make_correction([delay])
        self.looks_ahead = blank.looks_ahead
        """Whether the correction acts without a delay, too."""
        self._is_plain = delay == 0 and not self.looks_ahead
        if self._is_plain:  # nothing to correct, so nothing to remember
            self.correction = arm.correction_node(0, None)
            blank = self._make_correction([delay])
        arm.require_fitting(blank, optimizer, keep, self.correction.get("coefficient"))

    def _make_correction(self, lags: Sequence[int]) -> NoCorrection:
        return build(self.correction, self.num_updates or MAX_COUNT, lags)

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes the gradients of a batch and makes the update that is due.

        Afterwards the model has the weights that the next forward and backward are to read. Returns
        what `closure` returns, which may compute the gradients and is called once. Raises
        RuntimeError between `eval()` and `train()`, after `num_updates` steps, and if somebody else
        changed the weights.
        """
        return self._take(closure)

    @untraced
    def _take(self, closure: Callable[[], Any] | None) -> Any:
        progress = self._progress
        optimizer = progress.optimizer
        if progress.is_shown:
            raise RuntimeError("the model has the weights to evaluate: call train() before step()")
        if self.num_updates is not None and progress.num_taken >= self.num_updates:
            raise RuntimeError(f"num_updates={self.num_updates} are made: the training was longer")
        is_bare = self._is_plain and self._clip_norm is None
        with torch.enable_grad():  # a bare optimizer calls the closure itself, maybe several times
            result = None if closure is None or is_bare else closure()
        self._forget()
        keeper, _ = self._begin()
        if is_bare:
            result = optimizer.step(*([] if closure is None else [closure]))
        elif self._is_plain:
            clip([weight.grad for weight in self._present().values()], self._clip_norm)
            optimizer.step()
        else:
            gradients = [weight.grad for weight in keeper.weights]
            progress.has_graph |= any(g is not None and g.requires_grad for g in gradients)
            keeper.take(progress.num_taken, gradients, self._update)
            optimizer._opt_called = True  # type: ignore[attr-defined]  # for its schedulers
        keeper.gathered.drop()  # an evaluation before this step may have left copies
        progress.num_taken += 1
        return result

    @untraced
    def eval(self) -> None:
        """Puts the weights to evaluate, of W(t + 1), into the model; see `train`.

        Most optimizers are evaluated at W(t + 1) itself, one with an `eval()` of its own where that
        moves it. With `keep="gradients"` this is of the newest weights that are made.
        """
        progress = self._progress
        optimizer = progress.optimizer
        # Before the first step the model has the newest weights anyway.
        if progress.is_shown or (progress.keeper is None and not has_average(optimizer)):
            return
        self.train()
        keeper, correction = self._begin()
        with keeper.at_newest():
            # An average of nothing is none: some optimizers raise there.
            is_made = progress.num_taken > self.num_waiting or has_average(optimizer)
            weights = evaluated(optimizer, keeper.weights) if is_made else keeper.weights
            weights = correction.evaluated(weights)
        keeper.show(weights)
        progress.is_shown = True

    @untraced
    def train(self) -> None:
        """Puts back the weights that the next forward and backward are to read, to the bit."""
        progress = self._progress
        optimizer = progress.optimizer
        if progress.keeper is not None and progress.is_shown:
            progress.keeper.hide()
            progress.is_shown = False
        elif isinstance(optimizer, HasModes) and not isinstance(progress.keeper, KeptWeights):
            optimizer.train()

    @contextmanager
    def newest(self) -> Iterator[None]:
        """`eval()` while the context lasts."""
        was_shown = self._progress.is_shown
        self.eval()
        try:
            yield
        finally:
            if not was_shown:
                self.train()

    @property
    def num_waiting(self) -> int:
        """Gradients that were taken and not applied yet, with `keep="gradients"`."""
        keeper = self._progress.keeper
        return 0 if keeper is None else len(keeper.waiting.options)

    @untraced
    def finish(self) -> None:
        """Makes the updates that wait and puts W(T) into the model, at the end of the training.

        It may be left out if `num_updates` was given. A training that goes on from here is drained:
        its next batch is not delayed. What is evaluated at other weights than W(T), like
        schedule-free AdamW, still asks for `eval()`.
        """
        self.train()
        if self._progress.keeper is not None:
            keeper, _ = self._begin()
            keeper.finish(self._update)
            keeper.gathered.drop()

    @override
    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's, and the delay's: as `delay_…` in the state of each weight, and
        as `delayed` in each group."""
        self._before_state_dict()
        progress = self._progress
        packed = around.add_delayed(
            progress.optimizer.state_dict(),
            self.param_groups,
            {} if progress.keeper is None else self._delay_tensors(),
            self._attributes(SAME + COUNTED),
            Waiting([], []) if progress.keeper is None else progress.keeper.waiting,
        )
        return self._after_state_dict(packed)

    def _delay_tensors(self) -> dict[Tensor, dict[str, Tensor]]:
        """All that the delay and its correction remember of each weight, by name."""
        keeper, correction = self._begin()
        rows = zip(keeper.weights, keeper.state(), correction.state(), strict=True)
        return {weight: {**versions, **memory} for weight, versions, memory in rows}

    @override
    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned, weights included: the training goes on to the bit.

        The state of a bare optimizer is taken too: then the delay begins with the next step. Raises
        BadInput for a state with another delay or `keep`, and ValueError as torch does.
        """
        packed = self._before_loading(state_dict)
        around.require_alike(packed, self.param_groups, self._attributes(SAME))
        counts = {name: around.delayed_of(packed).get(name, 0) for name in COUNTED}
        is_begun = around.has_delay_tensors(packed) or counts["num_taken"]
        saved = around.take_apart(packed) if is_begun else None
        progress = self._progress
        if saved is None:
            progress.optimizer.load_state_dict(dict(around.without_delayed(packed)))
        else:
            optimizer_state.load(progress.optimizer, saved.wrapped)
        blank = Progress(progress.optimizer, **counts)
        vars(progress).update(vars(blank))  # in place: see `Progress`
        if saved is not None:
            # A weight that the delay had nothing of is new to it at the next step.
            pairs = zip(self._present().values(), saved.delay_tensors, strict=True)
            tensors_of = {weight: tensors for weight, tensors in pairs if tensors}
            keeper, correction = self._follow([*tensors_of])
            keeper.restore(self.num_taken, [*tensors_of.values()], saved.waiting)
            correction.restore([*tensors_of.values()])
        self._after_loading()

    def _attributes(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}

    def _present(self) -> dict[int, nn.Parameter]:
        """The weights in the groups, in their order, by what tells them apart."""
        return {id(weight): weight for group in self.param_groups for weight in group["params"]}

    def _begin(self) -> tuple[Keeper, CorrectionInParts]:
        """The keeper and the correction, made at the first step: until then weights may be loaded,
        moved, sharded.

        They take weights that were added to the optimizer since, or train from now on: what was
        always frozen has no other version than its own.
        """
        keeper = self._progress.keeper
        followed = [] if keeper is None else keeper.weights
        ids = {*map(id, followed)}
        other_weights = [weight for id_, weight in self._present().items() if id_ not in ids]
        training = [w for w in other_weights if w.requires_grad or w.grad is not None]
        return self._follow(training if training or followed else other_weights)

    def _follow(self, weights: Sequence[nn.Parameter]) -> tuple[Keeper, CorrectionInParts]:
        """The keeper and the correction, which take these `weights` too."""
        progress = self._progress
        lags, numbers = [self.delay] * len(weights), by_device(weights)
        if progress.keeper is None or progress.correction is None:
            progress.correction = CorrectionInParts(self._make_correction, lags, numbers)
            progress.keeper = self._make_keeper(progress.correction.reads_ahead)
        elif weights:
            first = len(progress.keeper.weights)
            following = [[first + i for i in of_kind] for of_kind in numbers]
            progress.correction.add(self._make_correction, lags, following)
        progress.keeper.add(weights)
        return progress.keeper, progress.correction

    def _forget(self) -> None:
        """Lets go of weights that left the groups, as pruned ones do, and of all that is kept of
        them, once every version of them is the same."""
        keeper, correction = self._progress.keeper, self._progress.correction
        if keeper is None or correction is None:
            return
        present = self._present()
        absent = [i for i, weight in enumerate(keeper.weights) if id(weight) not in present]
        if not absent:
            return
        tensors_of, weights = self._delay_tensors(), keeper.weights
        settled = [i for i in absent if around.is_settled(weights[i], tensors_of[weights[i]])]
        keeper.forget(settled)
        correction.forget(self._make_correction, settled)

    def _make_keeper(self, reads_ahead: bool) -> Keeper:
        version = partial(self._schedule.version, lag=self.delay)
        if self.keep == "gradients" or self.delay == 0:
            return KeptGradients(version, self.delay, Settings(self._progress.optimizer))
        return KeptWeights(version, self.delay, reads_ahead=reads_ahead)

    def _update(self, gradient: Gradient) -> Sequence[Tensor]:
        """Makes W(t + 1) of the newest weights; returns what late reads of it see."""
        batch, tensors, delay = gradient
        progress = self._progress
        optimizer = progress.optimizer
        progress.largest_delay = max(progress.largest_delay, delay)
        keeper, correction = self._begin()
        weights, delays, present = keeper.weights, [delay] * len(tensors), self._present()
        rows = zip(weights, tensors, strict=True)
        # A weight that left the groups is read late, but nobody steps it or counts its gradient.
        tensors = [tensor if id(weight) in present else None for weight, tensor in rows]
        progress.has_gradient |= any(tensor is not None for tensor in tensors)
        if delay and not progress.has_gradient:
            arm.refuse_without_gradients(optimizer, weights)
        correction.gradient_of_some(tensors, weights, delays)  # in place, as the clip
        # From the keeper's order to that of the groups, in which a loop's clip adds up its norm.
        by_weight = dict(zip(map(id, weights), tensors, strict=True))
        in_order = [by_weight.get(id_) for id_ in present]
        clip(in_order, self._clip_norm)
        with _scaled(optimizer, correction.lr_factor(batch, delay)):
            one_step = partial(self._step, batch, [*present.values()], in_order)
            late_reads = corrected_update(one_step, correction, weights, delays)
        if correction.looks_ahead:
            look_ahead(optimizer, correction, weights, batch, _rate(optimizer))
        return late_reads

    def _step(self, batch: int, weights: Weights, gradients: Gradients) -> list[Optimizer]:
        optimizer, correction = self._progress.optimizer, self._progress.correction
        with arm.second_derivatives_refused() if self._progress.has_graph else nullcontext():
            optimizers = step(optimizer, weights, gradients)
        # An optimizer makes its masters at its first step, so they can be found only after it.
        if batch == 0 and correction is not None and correction.moves_weights:
            stepped = [w for w, g in zip(weights, gradients, strict=True) if g is not None]
            arm.require_no_masters(optimizer, stepped, self.correction.get("coefficient"))
        return optimizers


def _rate(optimizer: Optimizer) -> float:
    """The learning rate of the first group as a share of its scheduler's base; 1 without one."""
    group = optimizer.param_groups[0]
    # `initial_lr` is written by torch's schedulers.
    return float(group["lr"] / group["initial_lr"]) if "initial_lr" in group else 1.0


def has_average(optimizer: Optimizer) -> bool:
    """Whether the optimizer has stepped, elsewhere or here, and averages."""
    return averages(optimizer) and any(optimizer.state.values())


@contextmanager
def _scaled(optimizer: Optimizer, factor: float) -> Iterator[None]:
    """The groups have `factor` times their learning rate for one update.

    Raises RuntimeError if the optimizer sets the rate itself: of what, nobody could say.
    """
    if factor == 1.0:
        yield
        return
    peaks = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor
    scaled = [group["lr"] for group in optimizer.param_groups]
    try:
        yield
        # By identity: an equal rate that the optimizer has set would be its own too.
        if any(g["lr"] is not lr for g, lr in zip(optimizer.param_groups, scaled, strict=True)):
            raise RuntimeError("the optimizer sets its own learning rate, as the correction does")
    finally:
        for group, lr in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = lr


@torch.no_grad()
def clip(gradients: Sequence[Tensor | None], norm: float | None) -> None:
    """Clips gradients in place by the norm of them all, unless the `norm` is None."""
    if norm is None:
        return
    holders = []
    for gradient in gradients:
        if gradient is not None:
            # torch clips the `.grad` of parameters; these gradients may be those of no weight yet.
            holder = nn.Parameter(gradient, requires_grad=False)
            holder.grad = gradient
            holders.append(holder)
    clip_grad_norm_(holders, norm)
