"""What happens around the step of Megatron's optimizers, by torch's step hooks.

Megatron's optimizers step fp32 weights by an optimizer of torch's kind, their own `optimizer`, and
then copy them to the bf16 weights of the model. Step hooks of the inner optimizer lie between the
two. What a correction remembers of a weight is one more entry of the inner optimizer's state, so
Megatron shards, saves and loads it as it does a moment of Adam.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pipegap.trainer.base.build import build
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.flat import by_device, cloned, copy_into
from pipegap.trainer.base.ranges import MAX_COUNT
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.delayed.arm import Node, correction_node, require_options
from pipegap.trainer.stages.in_parts import CorrectionInParts
from pipegap.trainer.stages.update import change
from pipegap.trainer.torch_pipelining.refusals import require

KEEPS_ALL_STATE = "dp_reshardable", "fully_sharded_model_space"
"""How Megatron's DistributedOptimizer may be sharded; its other ways save Adam's moments alone."""


def chain(optimizer: Any) -> list[Any]:
    """Return the optimizers of Megatron's that an optimizer of Megatron's consists of."""
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))


class CorrectedSteps:
    """Turns the W(t) − u_t that an optimizer of Megatron's made into W(t+1), as a correction says.

    `delay` returns how many updates old the gradient of the step is, 0 or 1. Raises BadInput for a
    correction that reads other weights than those that are stepped, or that remembers tensors of
    another shape than a weight's, which Megatron could not shard.
    """

    def __init__(
        self, inner: Any, correction: Node, num_updates: int | None, delay: Callable[[], int]
    ) -> None:
        self.inner, self.optimizer, self.delay = inner, inner.optimizer, delay
        self.weights: list[Any] = inner.get_parameters()
        make = partial(build, correction, num_updates or MAX_COUNT)
        sample = make([1])
        for reads in ("reads_ahead", "looks_ahead"):
            allowed = "must compute on the weights that the optimizer steps"
            require(not getattr(sample, reads), "correction", type(sample).__name__, allowed)
        self._names = _names_of_memory(sample)
        no_make = partial(NoCorrection, MAX_COUNT)
        lags, groups = [1] * len(self.weights), by_device(self.weights) or [[]]
        self.correction = CorrectionInParts(make if lags else no_make, lags, groups)
        self._previous: Sequence[Tensor] = ()
        self._has_loaded = False
        self._hook()

    def _hook(self) -> None:
        self.optimizer.register_step_pre_hook(lambda *_: self.begin())
        self.optimizer.register_step_post_hook(lambda *_: self.end())
        self.optimizer.register_load_state_dict_post_hook(lambda *_: self._load())
        init, sharded = self.inner.init_state_fn, self.inner.sharded_state_dict

        def init_all(optimizer: Any, config: Any = None) -> None:
            init(optimizer, config)
            self._load()

        def sharded_state_dict(*args: Any, **options: Any) -> Any:
            way = (options.get("metadata") or {}).get("distrib_optim_sharding_type")
            allowed = f"must be {' or '.join(KEEPS_ALL_STATE)}: else the correction's is not saved"
            is_sharded = hasattr(self.inner, "gbuf_ranges") and bool(self._names)
            is_met = not is_sharded or way in (None, *KEEPS_ALL_STATE)
            require(is_met, "distrib_optim_sharding_type", way, allowed)
            return sharded(*args, **options)

        self.inner.init_state_fn = init_all
        self.inner.sharded_state_dict = sharded_state_dict

    @torch.no_grad()
    def begin(self) -> None:
        """Before the inner step, at W(t)."""
        self._restore()
        if self.correction.needs_update:
            self._previous = cloned(self.weights)

    @torch.no_grad()
    def end(self) -> None:
        """After it, at W(t) − u_t."""
        previous, self._previous = self._previous, ()
        update = change(previous, self.weights, in_place=True) if previous else ()
        self.correction.apply(self.weights, update, self._delays)
        self.remember(self.correction.state())

    def correct_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Corrects the raw gradients of batch t, in place, at W(t)."""
        if self.correction.changes_gradients:
            self._restore()
            self.correction.gradient_of_some(gradients, self.weights, self._delays)

    @property
    def _delays(self) -> list[int]:
        return [self.delay()] * len(self.weights)

    def state(self, weight: Tensor) -> dict[str, Any]:
        """What the inner optimizer remembers of a weight; nothing before its first step."""
        return self.optimizer.state.get(weight, {})

    def remember(self, memory: Sequence[Any]) -> None:
        """Adds tensors by name to the state of each weight that has one."""
        for weight, tensors in zip(self.weights, memory, strict=True):
            if self.state(weight):  # an empty one means to torch that it was never stepped
                self.state(weight).update(tensors)

    def _load(self) -> None:
        """The inner optimizer has other state now, or makes room for what is about to be loaded."""
        self._has_loaded = True
        for weight in self.weights:
            if memory := self.state(weight):
                for name in self._names:
                    memory.setdefault(name, self.blank(name, weight))

    def blank(self, name: str, weight: Tensor) -> Tensor:
        """What is remembered where a checkpoint has nothing of that name: no earlier update."""
        return torch.zeros_like(weight)

    def _restore(self) -> None:
        if self._has_loaded:
            memories = [self.state(weight) for weight in self.weights]
            tensors = [{k: m[k] for k in self._names if k in m} for m in memories]
            self.correction.restore(tensors)
        self._has_loaded = False


def _names_of_memory(correction: NoCorrection) -> list[str]:
    """The names of all tensors that a correction of one weight ever remembers, from two updates."""
    weight = torch.zeros(2, 3)
    for delay in (0, 1):
        correction.gradient([torch.zeros(2, 3)], [weight], [delay])
        correction.apply([weight], [torch.zeros(2, 3)], [delay])
    [memory] = correction.state()
    for name, tensor in memory.items():
        allowed = f"must remember tensors of a weight's shape, which Megatron shards: {name} is not"
        require(tensor.shape == weight.shape, "correction", type(correction).__name__, allowed)
    return [*memory]


class DelayedSteps:
    """Trains to the loss of 2BW with any schedule of Megatron's, its bubble included.

    W(t+1) = W(t) − u_t − λ (u_t − u_{t−1}), u_t from the gradient of batch t at W(max(0, t − 1)):
    the update of `DelayedOptimizer`, in the optimizer that Megatron made, which it changes. Make it
    before a checkpoint is loaded. Between steps the optimizer and the model have W(max(0, t − 1)),
    and the optimizer's state has W(t) and u_{t−1} too, sharded as its masters are. Evaluate in
    `with delayed.newest():`.

    Raises BadInput, in one line that names the argument, for what cannot be used.
    """

    def __init__(
        self,
        optimizer: Any,
        error_feedback: float = 1.0,
        *,
        correction: Callable[..., NoCorrection] | None = None,
        num_updates: int | None = None,
    ) -> None:
        require_options("weights", None, correction, num_updates)
        node = correction_node(error_feedback, correction)
        for name in ("use_precision_aware_optimizer", "optimizer_cpu_offload"):
            if getattr(optimizer.config, name, False):
                raise BadInput(name, True, "must be False: its masters lie in the inner optimizer")
        steps = [inner for inner in chain(optimizer) if inner.optimizer is not None]
        self._parts = [_DelayedPart(inner, node, num_updates) for inner in steps]

    @contextmanager
    def newest(self) -> Iterator[None]:
        """Shows W(t) to the model, to be evaluated, and afterwards what the next batch reads."""
        weights = [cloned(part.weights) for part in self._parts]
        for part in self._parts:
            part.show(part.newest())
        yield
        for part, values in zip(self._parts, weights, strict=True):
            part.show(values)


NEWEST = "newest"


class _DelayedPart(CorrectedSteps):
    """Of one optimizer. Its state has "newest", W(t)."""

    def __init__(self, inner: Any, correction: Node, num_updates: int | None) -> None:
        super().__init__(inner, correction, num_updates, lambda: int(self._is_late))
        self._names.append(NEWEST)
        self._is_late = False

    def blank(self, name: str, weight: Tensor) -> Tensor:
        return torch.full_like(weight, torch.nan if name == NEWEST else 0)

    def begin(self) -> None:
        for weight in self.weights if self._has_loaded else ():
            memory = self.state(weight)
            if NEWEST in memory and memory[NEWEST].isnan().any():  # of a run without a delay
                del memory[NEWEST]
        self._is_late = any(NEWEST in self.state(weight) for weight in self.weights)
        copy_into(self.weights, self.newest())
        self._read_next = cloned(self.weights)
        super().begin()

    @torch.no_grad()
    def end(self) -> None:
        super().end()
        self.remember([{NEWEST: newest} for newest in cloned(self.weights)])
        copy_into(self.weights, self._read_next)
        self._read_next = ()

    def newest(self) -> list[Tensor]:
        """W(t): before the first step, the weights themselves."""
        return [self.state(weight).get(NEWEST, weight) for weight in self.weights]

    @torch.no_grad()
    def show(self, values: Sequence[Tensor]) -> None:
        """Gives these fp32 weights to the optimizer and to the model."""
        copy_into(self.weights, values)
        if hasattr(self.inner, "_copy_main_params_to_model_params"):
            self.inner._copy_main_params_to_model_params()
        for chunk in getattr(self.inner, "model_chunks", []):
            chunk.start_param_sync(force_sync=True)
