"""The state of a delayed optimizer in torch's format: the wrapped optimizer's, and the delay's.

The tensors of the delay stand beside the wrapped optimizer's, in the state of each weight, by names
that begin with `delay_`; what is no tensor stands in each group, as `delayed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from torch import Tensor

from trainer.base.errors import BadInput
from trainer.delayed.keeper import Waiting

OWN = "delay_"
"""What the names of the delay's tensors begin with."""
GROUP = "delayed"
"""The key of a group whose values are the delay's."""


def joined(wrapped: Mapping[str, Any], own: Sequence[Mapping[str, Tensor]]) -> dict[str, Any]:
    """The state of a weight, from the wrapped optimizer's and the delay's."""
    return {**wrapped, **{f"{OWN}{name}": tensor for of in own for name, tensor in of.items()}}


def add_delayed(
    packed: Mapping[str, Any], names: set[str], settings: Mapping[str, Any], waiting: Waiting
) -> None:
    """Adds to the groups of a state `settings`, what waits, and the names of the weights' states.

    Each group keeps its own options of those that wait.
    """
    for i, group in enumerate(packed["param_groups"]):
        group[GROUP] = {
            **settings,
            "names": sorted(names),
            "delays": waiting.delays,
            "options": [of[i] for of in waiting.options],
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
    wrapped, own = [], []
    for group in groups:
        options = {name: of for name, of in group.items() if name != "params"}
        for id_ in group["params"]:
            state = states.get(id_, {})
            theirs = {name: of for name, of in state.items() if not name.startswith(OWN)}
            wrapped.append({"state": theirs, "options": options})
            own.append(
                {name.removeprefix(OWN): of for name, of in state.items() if name.startswith(OWN)}
            )
    waiting = [list(of) for of in zip(*(of["options"] for of in ours), strict=True)]
    return Saved(wrapped, own, Waiting(ours[0]["delays"], waiting))


def without_delayed(packed: Mapping[str, Any]) -> dict[str, Any]:
    """A state as the wrapped optimizer takes it."""
    groups = [
        {name: of for name, of in group.items() if name != GROUP}
        for group in packed["param_groups"]
    ]
    return {**packed, "param_groups": groups}


def delayed_of(packed: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `add_delayed` added; empty for the state of a bare optimizer."""
    found: Mapping[str, Any] = packed["param_groups"][0].get(GROUP, {})
    return found


def require_alike(
    packed: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> None:
    """Raises ValueError for a state of other groups, BadInput for one of other settings."""
    sizes = [[len(group["params"]) for group in of] for of in (packed["param_groups"], groups)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"the state has groups of {sizes[0]} weights, not of {sizes[1]}")
    saved = delayed_of(packed)
    for name, value in settings.items():
        if saved.get(name, value) != value:
            raise BadInput(name, value, f"must be {saved[name]}, with which the state was saved")


def _require_names(names: Sequence[str], states: Mapping[int, Mapping[str, Any]]) -> None:
    for name in names:
        if not any(name in of for of in states.values()):
            raise ValueError(
                f"the state lacks {name}, which was saved: torch.distributed.checkpoint loads "
                "what an optimizer has after one step; load the state by torch.load instead"
            )
