"""What a stage asks of an optimizer beside its steps: its state by weight."""

from collections.abc import Mapping
from itertools import chain
from numbers import Number
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map, tree_map_only, tree_structure

State = dict[str, Any]


def by_weight(optimizer: Optimizer) -> dict[nn.Parameter, State]:
    """Weight → its state and the options of its group, where some optimizers count their steps."""
    states = optimizer.state
    return {
        weight: {
            "state": dict(states.get(weight, {})),
            "options": options(group),
        }
        for group in optimizer.param_groups
        for weight in group["params"]
    }


def options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parameter group without its parameters."""
    return {key: value for key, value in group.items() if key != "params"}


def copied(nest: Any) -> Any:
    """A copy of a state or of several: of each tensor alone, not of a vector that it is part of."""
    return tree_map_only(Tensor, lambda t: t if isinstance(t, nn.Parameter) else t.clone(), nest)


def replace_options(group: dict[str, Any], by: Mapping[str, Any]) -> None:
    """Gives `group` the options of the other one, and no more: some optimizers add some later."""
    weights = group["params"]
    group.clear()
    group.update(by, params=weights)


def restore(optimizer: Optimizer, saved: Mapping[nn.Parameter, State]) -> None:
    """Restores a copy of what `by_weight` returned, for the same kinds of weights.

    It is a copy because stages that share a tied weight must not share its moments.
    """
    copies = {w: {**of, "state": copied(of["state"])} for w, of in saved.items()}
    adopt(optimizer, copies)


def adopt(optimizer: Optimizer, saved: Mapping[nn.Parameter, State]) -> None:
    """Makes the optimizer go on with these very tensors, in the form that `by_weight` returns.

    It is exact to the last bit; torch's own `load_state_dict` casts what is not in the weight's
    dtype.
    """
    groups = [group["params"] for group in optimizer.param_groups]
    index = {weight: i for i, weight in enumerate(chain.from_iterable(groups))}
    states = {weight: saved[weight]["state"] for weight in index}
    optimizer.load_state_dict(
        {
            "state": {i: states[weight] for weight, i in index.items() if states[weight]},
            "param_groups": [
                {**saved[weights[0]]["options"], "params": [index[w] for w in weights]}
                for weights in groups
            ],
        }
    )
    for weight, state in states.items():
        _correct(optimizer.state[weight], state)


def load(optimizer: Optimizer, packed: Mapping[str, Any]) -> None:
    """The optimizer's own `load_state_dict`, but exact to the last bit as `adopt` is.

    The optimizer gets containers of its own with the tensors of `packed`: ZeroRedundancyOptimizer
    takes from what it loads the states of other ranks' weights.
    """
    optimizer.load_state_dict(tree_map(lambda leaf: leaf, dict(packed)))
    if {"state", "param_groups"} <= packed.keys():
        for group, of_group in zip(optimizer.param_groups, packed["param_groups"], strict=True):
            for weight, id_ in zip(group["params"], of_group["params"], strict=True):
                loaded = optimizer.state.get(weight)
                if id_ in packed["state"] and loaded is not None:  # None: another rank's weight
                    _correct(loaded, packed["state"][id_])


def _correct(loaded: State, saved: State) -> None:
    """Gives a loaded state what torch has cast, moved or spoiled, as it was saved."""
    for key, value in saved.items():
        if key in loaded and _stays(key, value):
            loaded[key] = value
        elif key in loaded and tree_structure(value) == tree_structure(loaded[key]):
            loaded[key] = tree_map(_exactly, value, loaded[key])


def _stays(key: str, value: Any) -> bool:
    """Whether a value is a number, as NAdam's product of momenta. Torch would move it to the GPU,
    where the host would wait for it; only of `step` torch knows where it belongs."""
    return key != "step" and isinstance(value, Tensor) and value.dim() == 0


def _exactly(saved: Any, loaded: Any) -> Any:
    """The saved value, on the device that torch's `load_state_dict` chose for `loaded`.

    Numbers stay as loaded: hooks of the optimizer may have set them. Torch spoils words.
    """
    if not isinstance(saved, Tensor) or not isinstance(loaded, Tensor):
        return loaded if isinstance(loaded, Number) else saved
    return loaded if loaded.dtype == saved.dtype else saved.to(loaded.device)
