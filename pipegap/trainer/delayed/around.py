"""What torch promises of an optimizer, kept by one that is put around another; its state too.

The state is in torch's format. The tensors of the delay stand beside the wrapped optimizer's, in
the state of each weight, by names that begin with `delay_`; what is no tensor stands in each group,
as `delayed`.
"""

from collections import OrderedDict, UserDict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass, transform_subclass
from torch.utils._pytree import tree_map
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.delayed.keeper import Keeper, Waiting
from pipegap.trainer.stages.in_parts import CorrectionInParts

HOOKS = [
    f"_optimizer_{of}_{when}_hooks"
    for of in ("state_dict", "load_state_dict")
    for when in ("pre", "post")
]
"""Where torch registers hooks of states."""


@dataclass
class Progress:
    """All attributes of a wrapper that a training changes, and the optimizer that it wraps.

    Libraries such as Fabric and lightning put a proxy before an optimizer: an instance of a class,
    made on the fly, that derives from the optimizer's class, and that reads the attributes which it
    lacks from the optimizer or has a copy of them. The optimizer's methods then run on the proxy,
    and an attribute that a method sets there is not set on the optimizer. So methods only change
    attributes of this object, which both share.
    """

    optimizer: Optimizer
    num_taken: int = 0
    largest_delay: int = 0
    keeper: Keeper | None = None
    correction: CorrectionInParts | None = None
    is_shown: bool = False
    """Whether the loop's weights are those to evaluate."""
    has_gradient: bool = False
    """Whether an update had the gradient of any weight, since this was made."""
    has_graph: bool = False
    """Whether a gradient came with a graph (create_graph=True)."""


class Around(Optimizer):
    """An optimizer whose groups, state and defaults are those of `optimizer`, the same objects.

    Hooks on its `step` are registered with `optimizer`; hooks on its `state_dict` and
    `load_state_dict` are its own. A copy of it wraps a copy of `optimizer`.
    """

    def __init__(self, optimizer: Optimizer) -> None:  # not torch's, which makes groups and state
        self._progress = Progress(optimizer)
        vars(self).update({name: OrderedDict() for name in HOOKS})

    @property
    def optimizer(self) -> Optimizer:
        """The wrapped optimizer."""
        return self._progress.optimizer  # classes that imitate this one have another `optimizer`

    @property
    def num_taken(self) -> int:
        """Batches whose gradient was taken: calls of `step`."""
        return self._progress.num_taken

    @property
    def largest_delay(self) -> int:
        """The largest delay of an update so far, counted."""
        return self._progress.largest_delay

    @property
    def state(self) -> Any:
        """The wrapped optimizer's own."""
        state = self._progress.optimizer.state
        return _Begun(state) if self.num_taken and not state else state

    @state.setter
    def state(self, state: Any) -> None:
        self._progress.optimizer.state = state

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The wrapped optimizer's own."""
        return self._progress.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self._progress.optimizer.param_groups = groups

    @property
    def defaults(self) -> dict[str, Any]:
        """The wrapped optimizer's own."""
        return self._progress.optimizer.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self._progress.optimizer.defaults = defaults

    @override
    def zero_grad(self, *args: Any, **options: Any) -> None:
        """Resets gradients as the wrapped optimizer does."""
        self._progress.optimizer.zero_grad(*args, **options)

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group as torch does, at any time; so does that of the wrapped optimizer."""
        self._progress.optimizer.add_param_group(param_group)

    @override
    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Registers a hook before each update: the model has W(t), and the gradient is there."""
        of_wrapped = lambda _, *arguments: hook(self, *arguments)  # noqa: E731
        return self._progress.optimizer.register_step_pre_hook(of_wrapped)

    @override
    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Registers a hook after each update: the model has W(t) − u_t."""
        of_wrapped = lambda _, *arguments: hook(self, *arguments)  # noqa: E731
        return self._progress.optimizer.register_step_post_hook(of_wrapped)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but hooks, and the `step` that schedulers patch: torch copies neither."""
        return {name: of for name, of in vars(self).items() if name not in (*HOOKS, "step")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({name: OrderedDict() for name in HOOKS}, **state)

    def _before_state_dict(self) -> None:
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)

    def _after_state_dict(self, packed: dict[str, Any]) -> dict[str, Any]:
        for hook in self._optimizer_state_dict_post_hooks.values():
            packed = returned if (returned := hook(self, packed)) is not None else packed
        return packed

    def _before_loading(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        packed = dict(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            packed = returned if (returned := hook(self, packed)) is not None else packed
        return packed

    def _after_loading(self) -> None:
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)


class _Begun(UserDict[Any, Any]):
    """The state of an optimizer that keeps none, but has stepped: writes reach it.

    It counts as true. torch.distributed.checkpoint makes a step of its own to fill an empty state,
    which the delay would count.
    """

    def __init__(self, state: dict[Any, Any]) -> None:
        self.data = state

    def __bool__(self) -> bool:
        return True

    def __missing__(self, key: Any) -> Any:
        return self.data[key]


Group = Mapping[str, Any]
PREFIX = "delay_"
"""What the names of the delay's tensors begin with."""
GROUP = "delayed"
"""The key of a group whose values are the delay's."""
WRAPPED = "wrapped"
"""The key of the wrapped optimizer's state, if it has a format of its own."""


def add_delayed(
    packed: Mapping[str, Any],
    groups: Sequence[Group],
    delay_tensors: Mapping[Tensor, Mapping[str, Tensor]],
    settings: Mapping[str, Any],
    waiting: Waiting,
) -> dict[str, Any]:
    """The state of the wrapped optimizer, with the delay's tensors of each weight.

    Its groups have `settings`, what waits, and the names of the weights' states. Each group has
    the options of its own that came with the gradients that wait, and the places of its weights
    that are frozen but whose versions differ yet: torch.distributed.checkpoint loads no tensor of
    a frozen weight.
    """
    has_keys = {"state", "param_groups"} <= packed.keys()
    if not has_keys or _sizes(packed["param_groups"]) != _sizes(groups):
        # Not torch's format, in which each weight has a number.
        packed = {"state": {}, "param_groups": _numbered(groups), WRAPPED: packed}
    # A shallow copy: the dicts of the wrapped optimizer's state stay as they are.
    states, names = dict(packed["state"]), set[str]()
    for group, of_group in zip(groups, packed["param_groups"], strict=True):
        for weight, id_ in zip(group["params"], of_group["params"], strict=True):
            tensors = delay_tensors.get(weight, {})
            named_tensors = {f"{PREFIX}{name}": tensor for name, tensor in tensors.items()}
            if named_tensors or id_ in states:
                states[id_] = {**states.get(id_, {}), **named_tensors}
                names.update(filter(_is_text, states[id_]))
    # `names`: a load can tell by them whether a tensor was left out (`_require_names`).
    shared = {**settings, "names": sorted(names), "delays": waiting.delays}
    options = [
        [by_group[i] if i < len(by_group) else {} for by_group in waiting.options]
        for i in range(len(groups))
    ]
    frozen = [
        [
            place
            for place, weight in enumerate(group["params"])
            if not weight.requires_grad and not is_settled(weight, delay_tensors.get(weight, {}))
        ]
        for group in groups
    ]
    param_groups = [
        {**group, GROUP: {**shared, "options": of_group, "frozen": places}}
        for group, of_group, places in zip(packed["param_groups"], options, frozen, strict=True)
    ]
    return {**packed, "state": states, "param_groups": param_groups}


def is_settled(weight: Tensor, delay_tensors: Mapping[str, Tensor]) -> bool:
    """Whether the delay goes on alike without these tensors, all that it has of `weight`: each
    equals the weight, or is zero, as the change of a weight that is left alone."""
    zeros = torch.zeros_like(weight)
    tensors = delay_tensors.values()
    return all(torch.equal(t, weight.detach()) or torch.equal(t, zeros) for t in tensors)


def _is_text(name: object) -> bool:
    return isinstance(name, str)


def _sizes(groups: Sequence[Group]) -> list[int]:
    return [len(group["params"]) for group in groups]


def _numbered(groups: Sequence[Group]) -> list[dict[str, Any]]:
    ends = [0, *accumulate(_sizes(groups))]
    return [{"params": list(range(start, end))} for start, end in pairwise(ends)]


class Saved(NamedTuple):
    """A state in its parts."""

    wrapped: dict[str, Any]
    """The wrapped optimizer's."""
    delay_tensors: list[dict[str, Tensor]]
    """The delay's, of each weight in the order of the groups; empty where it has none."""
    waiting: Waiting


def take_apart(packed: Mapping[str, Any]) -> Saved:
    """A copy of a state that `add_delayed` completed. Raises ValueError if a part is lost."""
    copy = _copied(packed)  # parts are popped from it: the caller's state stays whole
    states = copy["state"]
    of_groups = [group.pop(GROUP) for group in copy["param_groups"]]
    _require_names(of_groups[0]["names"], states)
    by_group = zip(*(of_group["options"] for of_group in of_groups), strict=True)
    waiting = Waiting(of_groups[0]["delays"], [list(of_batch) for of_batch in by_group])
    delay_tensors: dict[Any, dict[str, Tensor]] = {}
    for group, of_group in zip(copy["param_groups"], of_groups, strict=True):
        for place, id_ in enumerate(group["params"]):
            if id_ in delay_tensors:
                continue  # the weight is in two groups
            state = states.get(id_, {})
            names = [name for name in state if _is_text(name) and name.startswith(PREFIX)]
            if not names and place in of_group.get("frozen", ()):  # not in states of 0.2
                raise ValueError(
                    f"the state lacks the delay of a frozen weight, {id_!r}: torch.distributed."
                    "checkpoint leaves it out; load the state by torch.load instead"
                )
            delay_tensors[id_] = {name.removeprefix(PREFIX): state.pop(name) for name in names}
            if names and not state:  # the wrapped optimizer had none
                del states[id_]
    return Saved(copy.get(WRAPPED, copy), [*delay_tensors.values()], waiting)


def _copied(packed: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a state, in which what cannot be copied is shared, as torch shares all that it
    loads."""
    memory: dict[int, Any] = {}  # what stands at two places stays one object

    def copy(leaf: Any) -> Any:
        try:
            return deepcopy(leaf, memory)
        except (NotImplementedError, RuntimeError, TypeError):
            # Tensors of few bits can often be copied by their parts alone.
            if is_traceable_wrapper_subclass(leaf):
                return transform_subclass(leaf, lambda _, part: copy(part))
            return leaf

    return tree_map(copy, dict(packed))


def without_delayed(packed: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state without a delay as the wrapped optimizer takes it."""
    if WRAPPED in packed or "param_groups" not in packed:
        return packed.get(WRAPPED, packed)
    groups = [
        {name: value for name, value in group.items() if name != GROUP}
        for group in packed["param_groups"]
    ]
    return {**packed, "param_groups": groups}


def delayed_of(packed: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `add_delayed` added; empty for the state of a bare optimizer."""
    groups = packed.get("param_groups") or [{}]
    return groups[0].get(GROUP) or {}


def has_delay_tensors(packed: Mapping[str, Any]) -> bool:
    """Whether any weight has a tensor of the delay."""
    return any(
        _is_text(name) and name.startswith(PREFIX)
        for state in packed.get("state", {}).values()
        if isinstance(state, Mapping)
        for name in state
    )


def require_alike(
    packed: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> None:
    """Raises ValueError for a state of other groups or that lost a part of the delay, BadInput
    for one of other settings."""
    saved = delayed_of(packed)
    if "param_groups" not in packed:
        return  # a bare optimizer's own format
    saved_sizes, sizes = _sizes(packed["param_groups"]), _sizes(groups)
    if saved_sizes != sizes:
        raise ValueError(f"the state has groups of {saved_sizes} weights, not of {sizes}")
    if not saved and has_delay_tensors(packed):
        raise ValueError(f"the state lost what its groups have as {GROUP!r}: it cannot go on")
    for name, value in settings.items():
        if saved.get(name, value) != value:
            raise BadInput(name, value, f"must be {saved[name]}, with which the state was saved")


def _require_names(names: Sequence[str], states: Mapping[int, Mapping[str, Any]]) -> None:
    for name in names:
        # One weight that has it is enough: a weight without a gradient has no state.
        if not any(isinstance(s, Mapping) and name in s for s in states.values()):
            raise ValueError(
                f"the state lacks {name}, which was saved: torch.distributed.checkpoint loads "
                "what an optimizer has after one step; load the state by torch.load instead"
            )
