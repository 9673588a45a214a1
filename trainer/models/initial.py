"""Initial weights, by the module that they belong to."""

from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Generator, Tensor, nn

from pipegap.trainer.base.randomness import stream


class Streams(Protocol):
    """The random streams of one parameter, one for each name of a part of it."""

    def __call__(self, *part: str) -> Generator:
        """The generator of a part; without a name, the generator of the whole parameter."""


@runtime_checkable
class InitialisesItself(Protocol):
    """A module that knows the initial values of its own parameters."""

    def initial(self, name: str, shape: torch.Size, std: float, streams: Streams) -> Tensor:
        """Initial values of the parameter `name`; `std` is the model's standard deviation."""


@torch.no_grad()
def initialise(module: nn.Module, std: float, seed: int) -> None:
    """Normal(0, std) for matrices and 1 for vectors, unless their module says otherwise.

    Each parameter is drawn on the CPU from a stream of its own name, so that its values depend on
    neither the stages nor the device.
    """
    for path, submodule in module.named_modules():
        for name, parameter in submodule.named_parameters(recurse=False):
            streams = partial(stream, seed, "init", f"{path}.{name}".lstrip("."))
            if isinstance(submodule, InitialisesItself):
                parameter.copy_(submodule.initial(name, parameter.shape, std, streams))
            elif parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                parameter.copy_(normal(parameter.shape, std, streams()))


def normal(shape: torch.Size, std: float, generator: Generator) -> Tensor:
    """Normal(0, std), fp32 on the CPU."""
    return torch.empty(shape).normal_(0, std, generator=generator)
