"""An optimizer that steps the memory beneath the weights, as ZeRO does by `bucket_view`s."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import SGD


class Joined(SGD):
    """SGD on vectors: the weights become parts of one, or, `each`, of one for each weight."""

    def __init__(self, weights: Sequence[nn.Parameter], lr: float, *, each: bool) -> None:
        super().__init__(weights, lr=lr)
        self.parts = [[weight] for weight in weights] if each else [[*weights]]
        self.joined = [parameters_to_vector(of).detach().clone() for of in self.parts]
        for vector, of in zip(self.joined, self.parts, strict=True):
            vector_to_parameters(vector, of)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Steps the vectors alone."""
        for vector, of in zip(self.joined, self.parts, strict=True):
            gradient = parameters_to_vector(weight.grad for weight in of)
            vector.sub_(gradient, alpha=self.param_groups[0]["lr"])
