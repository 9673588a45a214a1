"""`torch.compile`, a layer at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trainer.models.layers import Layer

compiled: Callable[..., Any] = partial(torch.compile, dynamic=False)
"""`torch.compile` for shapes that do not change: the last batch of an evaluation gets a graph of
its own, and does not make the training's one slower."""


def compiled_stage(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """The module with each of its layers compiled; one that has no `Layer` is compiled as a whole.

    All layers of one shape share one graph, those of other stages too. A graph per stage would be
    compiled for as long as the model is deep, would depend on where the model is cut, and beyond
    eight stages torch would run the others uncompiled.
    """
    layers = [part for part in module.modules() if isinstance(part, Layer)]
    for layer in layers:
        layer.compile(dynamic=False)
    return module if layers else compiled(module)
