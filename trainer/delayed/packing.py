"""The state of a delayed optimizer in torch's format: the wrapped optimizer's, and the delay's.

The tensors of the delay stand beside the wrapped optimizer's, in the state of each weight, by names
that begin with `delay_`; what is no tensor stands in each group, as `delayed`.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from torch import Tensor

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.delayed.keeper import Waiting

Group = Mapping[str, Any]
OWN = "delay_"
"""What the names of the delay's tensors begin with."""
GROUP = "delayed"
"""The key of a group whose values are the delay's."""
WRAPPED = "wrapped"
"""The key of the wrapped optimizer's state, if it has a format of its own."""


def add_delayed(
    packed: Mapping[str, Any],
    groups: Sequence[Group],
    own: Mapping[Tensor, Mapping[str, Tensor]],
    settings: Mapping[str, Any],
    waiting: Waiting,
) -> dict[str, Any]:
    """The state of the wrapped optimizer, with the delay's own tensors of each weight.

    Its groups have `settings`, what waits, and the names of the weights' states. Each group keeps
    its own options of the gradients that wait.
    """
    if not _is_usual(packed, groups):
        packed = {"state": {}, "param_groups": _numbered(groups), WRAPPED: packed}
    states, names = dict(packed["state"]), set[str]()
    for group, of_group in zip(groups, packed["param_groups"], strict=True):
        for weight, id_ in zip(group["params"], of_group["params"], strict=True):
            named = {f"{OWN}{name}": tensor for name, tensor in own.get(weight, {}).items()}
            if named or id_ in states:
                states[id_] = {**states.get(id_, {}), **named}
                names.update(filter(_is_text, states[id_]))
    shared = {**settings, "names": sorted(names), "delays": waiting.delays}
    options = [
        [by_group[i] if i < len(by_group) else {} for by_group in waiting.options]
        for i in range(len(groups))
    ]
    param_groups = [
        {**group, GROUP: {**shared, "options": of_group}}
        for group, of_group in zip(packed["param_groups"], options, strict=True)
    ]
    return {**packed, "state": states, "param_groups": param_groups}


def _is_text(name: object) -> bool:
    return isinstance(name, str)


def _is_usual(packed: Mapping[str, Any], groups: Sequence[Group]) -> bool:
    """Whether a state has torch's format, in which each weight has a number."""
    return {"state", "param_groups"} <= packed.keys() and _sizes(packed["param_groups"]) == _sizes(
        groups
    )


def _sizes(groups: Sequence[Group]) -> list[int]:
    return [len(group["params"]) for group in groups]


def _numbered(groups: Sequence[Group]) -> list[dict[str, Any]]:
    ends = [sum(_sizes(groups[: i + 1])) for i in range(len(groups))]
    return [
        {"params": list(range(end - size, end))}
        for size, end in zip(_sizes(groups), ends, strict=True)
    ]


class Saved(NamedTuple):
    """A state in its parts."""

    wrapped: dict[str, Any]
    """The wrapped optimizer's."""
    own: list[dict[str, Tensor]]
    """The delay's, of each weight in the order of the groups."""
    waiting: Waiting


def take_apart(packed: Mapping[str, Any]) -> Saved:
    """A copy of a state that `add_delayed` completed. Raises ValueError if a name is lost."""
    copy = deepcopy(dict(packed))
    states = copy["state"]
    ours = [group.pop(GROUP) for group in copy["param_groups"]]
    _require_names(ours[0]["names"], states)
    by_group = zip(*(group["options"] for group in ours), strict=True)
    waiting = Waiting(ours[0]["delays"], [list(of_batch) for of_batch in by_group])
    own = []
    for id_ in dict.fromkeys(id_ for group in copy["param_groups"] for id_ in group["params"]):
        state = states.get(id_, {})
        names = [name for name in state if _is_text(name) and name.startswith(OWN)]
        own.append({name.removeprefix(OWN): state.pop(name) for name in names})
        if names and not state:  # the wrapped optimizer had none
            del states[id_]
    return Saved(copy.get(WRAPPED, copy), own, waiting)


def without_delayed(packed: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state without a delay as the wrapped optimizer takes it."""
    if WRAPPED in packed or "param_groups" not in packed:
        wrapped: Mapping[str, Any] = packed.get(WRAPPED, packed)
        return wrapped
    groups = [
        {name: value for name, value in group.items() if name != GROUP}
        for group in packed["param_groups"]
    ]
    return {**packed, "param_groups": groups}


def delayed_of(packed: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `add_delayed` added; empty for the state of a bare optimizer."""
    groups = packed.get("param_groups") or [{}]
    return groups[0].get(GROUP) or {}


def has_own(packed: Mapping[str, Any]) -> bool:
    """Whether any weight has a tensor of the delay."""
    return any(
        _is_text(name) and name.startswith(OWN)
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
    if not saved and has_own(packed):
        raise ValueError(f"the state lost what its groups have as {GROUP!r}: it cannot go on")
    for name, value in settings.items():
        if saved.get(name, value) != value:
            raise BadInput(name, value, f"must be {saved[name]}, with which the state was saved")


def _require_names(names: Sequence[str], states: Mapping[int, Mapping[str, Any]]) -> None:
    for name in names:
        if not any(isinstance(s, Mapping) and name in s for s in states.values()):
            raise ValueError(
                f"the state lacks {name}, which was saved: torch.distributed.checkpoint loads "
                "what an optimizer has after one step; load the state by torch.load instead"
            )
