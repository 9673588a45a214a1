"""An optimizer's state by weight, so that another stage, with other groups, can take it back."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from itertools import chain
from typing import Any

from torch import nn
from torch.optim import Optimizer

State = dict[str, Any]


def by_weight(optimizer: Optimizer) -> dict[nn.Parameter, State]:
    """Each weight's own state and the options of its group (some optimizers count steps there)."""
    return {
        weight: {
            "state": dict(optimizer.state.get(weight, {})),
            "options": {key: value for key, value in group.items() if key != "params"},
        }
        for group in optimizer.param_groups
        for weight in group["params"]
    }


def restore(optimizer: Optimizer, saved: Mapping[nn.Parameter, State]) -> None:
    """Takes back a copy of what `by_weight` gave, for the same kinds of weights.

    A copy, since the stages that share a tied weight must not share its moments.
    """
    groups = [group["params"] for group in optimizer.param_groups]
    index = {weight: i for i, weight in enumerate(chain.from_iterable(groups))}
    optimizer.load_state_dict(
        {
            "state": {
                i: deepcopy(saved[weight]["state"])
                for weight, i in index.items()
                if saved[weight]["state"]
            },
            "param_groups": [
                {**saved[weights[0]]["options"], "params": [index[w] for w in weights]}
                for weights in groups
            ],
        }
    )
