"""`torch.compile`, a layer at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

compiled: Callable[..., Any] = partial(torch.compile, dynamic=False)
"""`torch.compile` for shapes that do not change: the last batch of an evaluation gets a graph of
its own, and does not make the training's one slower."""


@runtime_checkable
class LayerByLayer(Protocol):
    """A stage that is compiled in parts.

    Layers of one shape share one graph, those of other stages too. A graph per stage would be
    compiled for as long as the model is deep, would depend on where the model is cut, and beyond
    eight stages torch would run the others uncompiled.
    """

    def layers(self) -> list[nn.Module]:
        """The parts that are compiled, each by itself."""


def compiled_stage(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """The module with its layers compiled, or compiled as a whole if it is not `LayerByLayer`."""
    if not isinstance(module, LayerByLayer):
        whole: Callable[[Tensor], Tensor] = compiled(module)
        return whole
    for layer in module.layers():
        layer.compile(dynamic=False)
    return module
