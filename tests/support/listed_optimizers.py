"""torch's own list of its optimizers, with the options that torch's tests try."""

import sys
import unittest
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

expecttest = ModuleType("expecttest")  # torch's list asks for it, and for no more than this of it
vars(expecttest)["TestCase"] = unittest.TestCase
sys.modules.setdefault("expecttest", expecttest)

from torch.testing._internal import common_optimizers as listed  # noqa: E402

Make = Callable[[list[nn.Parameter]], Optimizer]


def every(*, once: bool = False) -> dict[str, Make]:
    """Name and options → what makes the optimizer of weights; with `once`, one of each optimizer.

    Those that need a closure are left out, and options that record the step (`differentiable`).
    """
    found: dict[str, Make] = {}
    for info in listed.optim_db:
        if not info.step_requires_closure:
            numbered = list(_options(info))[-1:] if once else _options(info)
            for options in numbered:
                name = " ".join(
                    [info.optim_cls.__name__, *(f"{k}={v}" for k, v in options.items())]
                )
                found[name] = partial(_made, info, options)
    return found


def _options(info: Any) -> Iterator[dict[str, Any]]:
    device, dtype = torch.device("cpu"), torch.float64
    for given in listed._get_optim_inputs_including_global_cliquey_kwargs(device, dtype, info):
        if not given.kwargs.get("differentiable"):
            yield given.kwargs


def _made(info: Any, options: dict[str, Any], weights: list[nn.Parameter]) -> Optimizer:
    if info.optim_cls is torch.optim.Muon:  # takes matrices alone
        weights = [weight for weight in weights if weight.dim() == 2]
    if info.optim_cls is torch.optim.Adafactor:  # divides by the number of entries
        weights = [weight for weight in weights if weight.numel()]
    made: Optimizer = info.optim_cls(weights, **deepcopy(options))
    return made
