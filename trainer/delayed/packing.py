"""The state of a delayed optimizer in torch's format: the wrapped optimizer's, and the delay's.

The tensors of the delay stand beside the wrapped optimizer's, in the state of each weight, by names
that begin with `delay_`; what is no tensor stands in each group, as `delayed`.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from torch import Tensor

from trainer.base.errors import BadInput
from trainer.delayed.keeper import Waiting
from trainer.optimizers.state import options

OWN = "delay_"
"""What the names of the delay's tensors begin with."""
GROUP = "delayed"
"""The key of a group whose values are the delay's."""


def joined(wrapped: Mapping[str, Any], own: Sequence[Mapping[str, Tensor]]) -> dict[str, Any]:
    """The state of a weight, from the wrapped optimizer's and the delay's."""
    named = [(name, tensor) for tensors in own for name, tensor in tensors.items()]
    return {**wrapped, **{f"{OWN}{name}": tensor for name, tensor in named}}


def add_delayed(
    packed: Mapping[str, Any], names: set[str], settings: Mapping[str, Any], waiting: Waiting
) -> None:
    """Adds to the groups of a state `settings`, what waits, and the names of the weights' states.

    Each group keeps its own options of the gradients that wait.
    """
    for i, group in enumerate(packed["param_groups"]):
        group[GROUP] = {
            **settings,
            "names": sorted(names),
            "delays": waiting.delays,
            "options": [by_group[i] for by_group in waiting.options],
        }


class Saved(NamedTuple):
    """A state in its parts, each of a weight, in the order of the groups."""

    wrapped: list[dict[str, Any]]
    """What `optimizers.state` restores: `state` and `options`."""
    own: list[dict[str, Tensor]]
    waiting: Waiting


def take_apart(packed: Mapping[str, Any]) -> Saved:
    """A copy of a state that `add_delayed` completed. Raises ValueError if a name is lost."""
    states, groups = deepcopy(packed["state"]), deepcopy(packed["param_groups"])
    ours = [group.pop(GROUP) for group in groups]
    _require_names(ours[0]["names"], states)
    by_group = zip(*(group["options"] for group in ours), strict=True)
    saved = Saved([], [], Waiting(ours[0]["delays"], [list(of_batch) for of_batch in by_group]))
    for group in groups:
        for state in (states.get(id_, {}) for id_ in group["params"]):
            own = {name: state.pop(name) for name in list(state) if name.startswith(OWN)}
            saved.wrapped.append({"state": state, "options": options(group)})
            saved.own.append({name.removeprefix(OWN): value for name, value in own.items()})
    return saved


def without_delayed(packed: Mapping[str, Any]) -> dict[str, Any]:
    """A state as the wrapped optimizer takes it."""
    groups = [
        {name: value for name, value in group.items() if name != GROUP}
        for group in packed["param_groups"]
    ]
    return {**packed, "param_groups": groups}


def delayed_of(packed: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `add_delayed` added; empty for the state of a bare optimizer."""
    return packed["param_groups"][0].get(GROUP, {})


def has_own(packed: Mapping[str, Any]) -> bool:
    """Whether any weight has a tensor of the delay."""
    return any(name.startswith(OWN) for state in packed["state"].values() for name in state)


def require_alike(
    packed: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> None:
    """Raises ValueError for a state of other groups or that lost a part of the delay, BadInput
    for one of other settings."""
    saved_sizes = [len(group["params"]) for group in packed["param_groups"]]
    sizes = [len(group["params"]) for group in groups]
    if saved_sizes != sizes:
        raise ValueError(f"the state has groups of {saved_sizes} weights, not of {sizes}")
    saved = delayed_of(packed)
    if not saved and has_own(packed):
        raise ValueError(f"the state lost what its groups have as {GROUP!r}: it cannot go on")
    for name, value in settings.items():
        if saved.get(name, value) != value:
            raise BadInput(name, value, f"must be {saved[name]}, with which the state was saved")


def _require_names(names: Sequence[str], states: Mapping[int, Mapping[str, Any]]) -> None:
    for name in names:
        if not any(name in state for state in states.values()):
            raise ValueError(
                f"the state lacks {name}, which was saved: torch.distributed.checkpoint loads "
                "what an optimizer has after one step; load the state by torch.load instead"
            )
