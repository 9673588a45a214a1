"""What happens around the step of Megatron's optimizers.

They step fp32 weights by an optimizer of torch's kind, their own `optimizer`, and then copy them to
the bf16 weights of the model. A correction acts between the two. What is remembered of a weight is
one more entry of the inner optimizer's state, so Megatron shards, saves and loads it as it does a
moment of Adam.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipegap.trainer.base.build import build
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.flat import copy_into, exchange
from pipegap.trainer.base.ranges import MAX_COUNT
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.delayed.arm import MakeCorrection, Node, correction_node, require_options
from pipegap.trainer.stages.update import corrected_update
from pipegap.trainer.torch_pipelining.late_update import blank_memory, correction_of
from pipegap.trainer.torch_pipelining.refusals import LOOKS_AHEAD, require

KEEPS_ALL_STATE = "dp_reshardable", "fully_sharded_model_space"
"""How Megatron's DistributedOptimizer may be sharded; its other ways save Adam's moments alone."""
OTHER_WEIGHTS = "other_weights"
"""The entry of the state that has W(t+1) while the optimizer's weights are what batches read, and
what they read while the weights are W(t+1)."""


def inner_of(optimizer: Any) -> list[Any]:
    """Return the optimizers of Megatron's that an optimizer of Megatron's consists of."""
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))


class CorrectedSteps:
    """Turns the W(t) − u_t that an optimizer of Megatron's made into W(t+1), as a correction says.

    `delay` returns how many updates old the gradient of the step is, 0 or 1. Without it the next
    batch reads W(t), as `DelayedSteps` has it; with a correction that `reads_ahead`, batches read
    what that predicts. Then the optimizer and the model have the weights that are read, from a step
    on, until `show`.

    Raises BadInput for a correction that cannot be had here.
    """

    def __init__(
        self,
        inner: Any,
        correction: Node,
        num_updates: int | None,
        delay: Callable[[], int] | None = None,
    ) -> None:
        self.inner, self.optimizer = inner, inner.optimizer
        self.weights: list[Any] = inner.get_parameters()
        make = partial(build, correction, num_updates or MAX_COUNT)
        sample = make([1])
        # Of the memory of a weight: 0 for a tensor of its shape, else how many numbers.
        [memory] = blank_memory(sample, [torch.zeros(2, 3)])
        self._sizes = {k: 0 if v.shape == (2, 3) else v.numel() for k, v in memory.items()}
        self._is_distributed = hasattr(inner, "gbuf_ranges")
        self.shows_newest = delay is not None
        self._require_usable(sample, is_delayed=delay is None)
        self.hides_newest = delay is None or sample.reads_ahead
        if self.hides_newest:
            self._sizes[OTHER_WEIGHTS] = 0
        delay = delay or (lambda: int(any(OTHER_WEIGHTS in state for state in self._states)))
        self._delays = lambda: [delay()] * len(self.weights)
        self.correction = correction_of(make, self.weights)
        self._has_loaded = False
        if self.optimizer is not None:  # else nothing of this rank is trained by it
            self._replace()

    def _require_usable(self, sample: NoCorrection, *, is_delayed: bool) -> None:
        name, tp_group = type(sample).__name__, getattr(self.inner, "tp_group", None)
        require(not sample.looks_ahead, "correction", name, LOOKS_AHEAD)
        acts_elsewhere = sample.reads_ahead or type(sample).gradient is not NoCorrection.gradient
        allowed = "must act on steps alone: Megatron2BW takes one of gradients or predicted weights"
        require(not (is_delayed and acts_elsewhere), "correction", name, allowed)
        is_sharded = self._is_distributed or (tp_group and tp_group.size() > 1)
        allowed = "must not compute a number from a whole weight, of which a rank has a shard: use "
        allowed += "error_feedback, or neither use_distributed_optimizer nor tensor parallelism"
        require(not (is_sharded and any(self._sizes.values())), "correction", name, allowed)

    def _replace(self) -> None:
        """Puts calls of its own in the place of the optimizer's."""
        self.optimizer.step = partial(self._step, self.optimizer.step)
        self.optimizer.register_load_state_dict_post_hook(lambda *_: self._make_room())
        init, sharded = self.inner.init_state_fn, self.inner.sharded_state_dict

        def init_all(optimizer: Any, config: Any = None) -> None:
            init(optimizer, config)
            self._make_room()

        def sharded_state_dict(*args: Any, **options: Any) -> Any:
            way = (options.get("metadata") or {}).get("distrib_optim_sharding_type")
            saves_all = not self._is_distributed or way in (None, *KEEPS_ALL_STATE)
            allowed = f"must be {' or '.join(KEEPS_ALL_STATE)}: else the correction's is not saved"
            require(saves_all or not self._sizes, "distrib_optim_sharding_type", way, allowed)
            return sharded(*args, **options)

        self.inner.init_state_fn, self.inner.sharded_state_dict = init_all, sharded_state_dict

    @torch.no_grad()
    def _step(self, step: Callable[..., object], *args: Any, **options: Any) -> None:
        """In place of the inner optimizer's step, which it makes at W(t)."""
        self._restore()
        other_set: list[Any] = []
        if self.hides_newest:  # afterwards both are W(t)
            pairs = zip(self._states, self.weights, strict=True)
            other_set = [s[OTHER_WEIGHTS] if OTHER_WEIGHTS in s else w.clone() for s, w in pairs]
            both_sets = other_set, self.weights
            copy_into(*(both_sets if self.shows_newest else reversed(both_sets)))

        def stepped() -> list[Any]:
            step(*args, **options)
            return [self.optimizer]

        parts = stepped, self.correction, self.weights, self._delays()
        predicted = corrected_update(*parts, old_weights=other_set)
        self._remember(self.correction.state())
        if self.hides_newest:
            if self.correction.reads_ahead:
                copy_into(other_set, predicted)
            exchange(self.weights, other_set)
            self._remember([{OTHER_WEIGHTS: tensor} for tensor in other_set])
            self.shows_newest = False

    def correct_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Corrects the raw gradients of batch t, in place, at W(t)."""
        if self.correction.changes_gradients:
            self._restore()
            self.correction.gradient_of_some(gradients, self.weights, self._delays())

    @torch.no_grad()
    def show(self, *, newest: bool) -> None:
        """Gives the optimizer and the model the newest weights, or again what batches read."""
        if newest == self.shows_newest or not self.hides_newest:
            return
        self.shows_newest = newest
        self._restore()
        stepped = [w for w, s in zip(self.weights, self._states, strict=True) if OTHER_WEIGHTS in s]
        exchange(stepped, [self.optimizer.state[weight][OTHER_WEIGHTS] for weight in stepped])
        if hasattr(self.inner, "_copy_main_params_to_model_params"):
            self.inner._copy_main_params_to_model_params()
        for chunk in getattr(self.inner, "model_chunks", []):
            chunk.start_param_sync(force_sync=True)

    @property
    def _states(self) -> list[dict[str, Any]]:
        """What the inner optimizer remembers of each weight; nothing before its first step."""
        return [self.optimizer.state.get(weight, {}) for weight in self.weights]

    def _remember(self, memory: Sequence[Any]) -> None:
        """Adds tensors by name to the state of each weight that has one; numbers begin a tensor of
        the weight's shape, which Megatron asks of all state."""
        for weight, state, tensors in zip(self.weights, self._states, memory, strict=True):
            for name, tensor in tensors.items() if state else ():  # an empty one was never stepped
                padding = (0, weight.numel() - self._sizes[name])
                state[name] = pad(tensor, padding).view_as(weight) if self._sizes[name] else tensor

    def _make_room(self) -> None:
        """The inner optimizer has other state now, or is about to: Megatron loads what has an entry
        by then. What the checkpoint does not have stays NaN."""
        self._has_loaded = True
        for weight, state in zip(self.weights, self._states, strict=True):
            for name in self._sizes if state else ():
                state.setdefault(name, torch.full_like(weight, torch.nan))

    def _restore(self) -> None:
        if not self._has_loaded:
            return
        self._has_loaded, states = False, self._states
        for state, name in product(states, self._sizes):
            if name in state and state[name].isnan().any():  # of a run that had none
                del state[name]
        sizes = self._sizes.items()
        self.correction.restore(
            [{k: s[k].flatten()[:n] if n else s[k] for k, n in sizes if k in s} for s in states]
        )


class DelayedSteps:
    """Trains to the loss of 2BW with any schedule of Megatron's, its bubble included.

    W(t+1) = W(t) − u_t − λ (u_t − u_{t−1}), u_t from the gradient of batch t at W(max(0, t − 1)):
    the update of `DelayedOptimizer`, in the optimizer that Megatron made, which it changes. Make it
    before a checkpoint of such a run is loaded. Between steps the optimizer and the model have
    W(max(0, t − 1)), and the optimizer's state has W(t) and u_{t−1} too, sharded as its masters
    are. Evaluate in `with delayed.newest():`.

    Raises BadInput, in one line that names the argument, for what cannot be used.
    """

    def __init__(
        self,
        optimizer: Any,
        error_feedback: float = 1.0,
        *,
        correction: MakeCorrection | None = None,
        num_updates: int | None = None,
    ) -> None:
        require_options("weights", None, correction, num_updates)
        node = correction_node(error_feedback, correction)
        for name in ("use_precision_aware_optimizer", "optimizer_cpu_offload"):
            if getattr(optimizer.config, name, False):
                raise BadInput(name, True, "must be False: its masters lie in the inner optimizer")
        self._parts = [CorrectedSteps(inner, node, num_updates) for inner in inner_of(optimizer)]

    @contextmanager
    def newest(self) -> Iterator[None]:
        """Shows W(t) to the model, to be evaluated, and afterwards what the next batch reads."""
        for part in self._parts:
            part.show(newest=True)
        yield
        for part in self._parts:
            part.show(newest=False)
