"""What torch promises of an optimizer, kept by one that is put around another."""

from collections import OrderedDict, UserDict
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

HOOKS = [
    f"_optimizer_{of}_{when}_hooks"
    for of in ("state_dict", "load_state_dict")
    for when in ("pre", "post")
]
"""Where torch registers hooks of states."""


class Around(Optimizer):
    """Has the groups, the state and the defaults of `optimizer`: they are the same objects.

    Its hooks on `step` are the other one's, and those on its own `state_dict` and `load_state_dict`
    are its own. A copy has a copy of the other one.
    """

    def __init__(self, optimizer: Optimizer) -> None:  # not torch's, which makes groups and state
        self.optimizer = optimizer
        self.num_taken = 0
        """Batches whose gradient was taken: calls of `step`."""
        vars(self).update({name: OrderedDict() for name in HOOKS})

    @property
    def state(self) -> Any:
        """The wrapped optimizer's own."""
        state = self.optimizer.state
        return _Begun(state) if self.num_taken and not state else state

    @state.setter
    def state(self, state: Any) -> None:
        self.optimizer.state = state

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The wrapped optimizer's own."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = groups

    @property
    def defaults(self) -> dict[str, Any]:
        """The wrapped optimizer's own."""
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.optimizer.defaults = defaults

    @override
    def zero_grad(self, *args: Any, **options: Any) -> None:
        """Resets gradients as the wrapped optimizer does."""
        self.optimizer.zero_grad(*args, **options)

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group as torch does, at any time; so does that of the wrapped optimizer."""
        self.optimizer.add_param_group(param_group)

    @override
    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Registers a hook before each update: the model has W(t), and the gradient is there."""
        return self.optimizer.register_step_pre_hook(lambda _, *given: hook(self, *given))

    @override
    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Registers a hook after each update: the model has W(t) − u_t."""
        return self.optimizer.register_step_post_hook(lambda _, *given: hook(self, *given))

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
            packed = given if (given := hook(self, packed)) is not None else packed
        return packed

    def _before_loading(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        packed = dict(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            packed = given if (given := hook(self, packed)) is not None else packed
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
