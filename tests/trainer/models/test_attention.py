"""Attention in bf16 on a CPU: as exact as bf16 is, and each token sees only what came before."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pipegap.trainer.models.layers import SHORT, causal

BF16_EPS = 2.0**-8
HEADS = [(3, 1), (4, 2), (2, 2)]


def drawn(heads: int, key_heads: int, seq_len: int, dtype: torch.dtype) -> list[Tensor]:
    draw = torch.Generator().manual_seed(heads)
    shapes = [(2, num_heads, seq_len, 8) for num_heads in (heads, key_heads, key_heads)]
    numbers = (torch.randn(shape, generator=draw) for shape in shapes)
    return [x.bfloat16().to(dtype).requires_grad_() for x in numbers]


def averages(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The definition, query by query."""
    per_key = q.shape[1] // k.shape[1]
    out = torch.empty_like(q)
    for head in range(q.shape[1]):
        for t in range(q.shape[2]):
            keys, values = (x[:, head // per_key, : t + 1] for x in (k, v))
            scores = torch.einsum("bd,btd->bt", q[:, head, t], keys) / q.shape[3] ** 0.5
            out[:, head, t] = torch.einsum("bt,btd->bd", scores.softmax(-1), values)
    return out


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_outputs_and_gradients_are_those_of_the_definition(
    heads: tuple[int, int], dtype: torch.dtype
) -> None:
    exact, given = drawn(*heads, 12, torch.float64), drawn(*heads, 12, dtype)
    expected, output = averages(*exact), causal(*given)
    assert output.dtype == dtype
    weights = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view_as(expected)
    (expected * weights).sum().backward()
    (output * weights).sum().backward()
    tolerance = 1e-12 if dtype == torch.float64 else 4 * BF16_EPS
    gradients = [(x.grad, y.grad) for x, y in zip(exact, given, strict=True)]
    for reference, rounded in [(expected, output), *gradients]:
        assert reference is not None
        assert rounded is not None
        distance = (rounded.detach().double() - reference.detach()).norm()
        assert (distance / reference.detach().norm()).item() < tolerance


def test_long_sequences_take_the_kernel_and_agree() -> None:
    """Products need a score for each pair of tokens."""
    q, k, v = drawn(2, 1, SHORT + 1, torch.bfloat16)
    kernel = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert torch.equal(causal(q, k, v), kernel)
    short = [x[:, :, :SHORT] for x in (q, k, v)]
    torch.testing.assert_close(causal(*short), kernel[:, :, :SHORT], rtol=0.02, atol=0.02)
    assert not torch.equal(causal(*short), kernel[:, :, :SHORT])
