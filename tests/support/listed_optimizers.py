"""torch's own list of its optimizers, with the options that torch's tests try."""

import sys
import unittest
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache, partial
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer

Make = Callable[[list[nn.Parameter]], Optimizer]
CLASSES = [
    name
    for name in torch.optim.__all__
    if isinstance(kind := getattr(torch.optim, name), type) and kind not in (Optimizer, LBFGS)
]
"""torch's optimizers, but for the one that needs a closure."""


@cache
def listed() -> Any:
    """The module that has torch's list: imported late, as it takes seconds."""
    expecttest = ModuleType("expecttest")  # it asks for this, and for no more than this of it
    vars(expecttest)["TestCase"] = unittest.TestCase
    sys.modules.setdefault("expecttest", expecttest)
    from torch.testing._internal import common_optimizers

    return common_optimizers


def of(name: str) -> dict[str, Make]:
    """Options → what makes the optimizer of this name of weights.

    Options that record the step (`differentiable`) are left out.
    """
    [info] = [info for info in listed().optim_db if info.optim_cls.__name__ == name]
    return {str(options): partial(_made, info, options) for options in _options(info)}


def _options(info: Any) -> Iterator[dict[str, Any]]:
    device, dtype = torch.device("cpu"), torch.float64
    for given in listed()._get_optim_inputs_including_global_cliquey_kwargs(device, dtype, info):
        if not given.kwargs.get("differentiable"):
            yield given.kwargs


def _made(info: Any, options: dict[str, Any], weights: list[nn.Parameter]) -> Optimizer:
    if info.optim_cls is torch.optim.Muon:  # takes matrices alone
        weights = [weight for weight in weights if weight.dim() == 2]
    if info.optim_cls is torch.optim.Adafactor:  # divides by the number of entries
        weights = [weight for weight in weights if weight.numel()]
    made: Optimizer = info.optim_cls(weights, **deepcopy(options))
    return made
