"""KL-SOAP where its eigenvalues are clamped, over fifty updates."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.oracles.kl_soap import kl_soap as equations
from tests.support.every_optimizer import maker

T = 50


@pytest.mark.parametrize("scale", [0.1, 1e-3])
@pytest.mark.parametrize("shape", [(8, 8), (12, 20)])
def test_it_equals_its_equations(shape: tuple[int, int], scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    start, *drawn = torch.randn(T + 1, *shape, dtype=torch.float64, generator=generator)
    make = maker("kl_soap", variance_decay=0.8)
    weight = nn.Parameter(start.clone())
    optimizer = make([("matrix", weight)])
    gradients = [scale * gradient for gradient in drawn]
    for gradient in gradients:
        weight.grad = gradient
        optimizer.step()
    batches = [(gradient, 1.0) for gradient in gradients]
    expected = equations(start, batches, SimpleNamespace(**make.keywords), 0)
    error = (weight.detach() - expected).norm() / (expected - start).norm()
    assert error <= 1e-12
    smallest = max(10, shape[0]) ** -2
    is_clamped = (optimizer.state[weight]["row_values"] == smallest).any()
    assert is_clamped == (scale < 0.1)
