"""KL-SOAP over fifty updates, also where its eigenvalues are clamped."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.oracles.kl_soap import kl_soap as equations
from tests.support.every_optimizer import maker

T = 50


@pytest.mark.parametrize("scale", [0.1, 1e-3])
@pytest.mark.parametrize(
    ("dtype", "shape", "bound"),
    [
        (torch.float64, (8, 8), 1e-12),
        (torch.float64, (12, 20), 1e-12),
        # 1.3e-6: rounding of the first eigenvectors. Those of a null space would be others.
        (torch.float32, (8, 8), 1e-5),
    ],
)
def test_it_equals_its_equations(
    dtype: torch.dtype, shape: tuple[int, int], bound: float, scale: float
) -> None:
    """Relative to the displacement in fp64, and to the weight in fp32, which rounds that."""
    generator = torch.Generator().manual_seed(0)
    start, *drawn = torch.randn(T + 1, *shape, dtype=torch.float64, generator=generator)
    make = maker("kl_soap", variance_decay=0.8)
    weight = nn.Parameter(start.to(dtype, copy=True))
    optimizer = make([("matrix", weight)])
    for gradient in drawn:
        weight.grad = (scale * gradient).to(dtype)
        optimizer.step()
    batches = [(scale * gradient, 1.0) for gradient in drawn]
    expected = equations(start, batches, SimpleNamespace(**make.keywords), 0)
    unit = expected - start if dtype == torch.float64 else expected
    assert (weight.detach() - expected).norm() / unit.norm() <= bound
    smallest = max(10, shape[0]) ** -2
    values = optimizer.state[weight]["row_values"]
    assert torch.isclose(values, torch.full_like(values, smallest)).any() == (scale < 0.1)
