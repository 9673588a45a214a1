"""The gated delta rule in chunks is the recurrence, and its parts are what they are called."""

import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.models.delta import (
    CausalConvolution,
    fused_gated_delta_rule,
    gated_delta_rule,
    unit,
)
from tests.oracles import delta as oracle

SEQ_LEN = 13


def drawn(dtype: torch.dtype, decay: float) -> list[Tensor]:
    """q, k, v, log decays down to −`decay`, and rates of writing up to 1."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, 2, SEQ_LEN, n, generator=generator, dtype=torch.float64) for n in (6, 6, 4)
    )
    gates = torch.rand(2, 2, 2, SEQ_LEN, generator=generator, dtype=torch.float64)
    rate = gates[1]
    rate[..., 3] = 1.0
    return [x.to(dtype) for x in (unit(q), unit(k), v, -decay * gates[0], rate)]


@pytest.mark.parametrize("decay", [0.0, 0.5, 300.0])
@pytest.mark.parametrize("chunk_size", [1, 4, 13, 32])
def test_chunks_are_the_recurrence(chunk_size: int, decay: float) -> None:
    """Also where a token forgets all before it, and where a chunk is longer than the sequence."""
    inputs, expected = drawn(torch.float64, decay), drawn(torch.float64, decay)
    for tensors in (inputs, expected):
        for x in tensors:
            x.requires_grad_()
    out, reference = gated_delta_rule(*inputs, chunk_size), oracle.gated_delta_rule(*expected)
    torch.testing.assert_close(out, reference, rtol=0, atol=1e-13)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).double()
    for result in (out, reference):
        (result * weights).sum().backward()
    for x, y in zip(inputs, expected, strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=1e-12)


def test_weak_decay_after_strong_decay_loses_no_digits_in_fp32() -> None:
    """A difference of cumulative sums would be wrong by 1e-5."""
    inputs = drawn(torch.float32, 300.0)
    inputs[3][..., 1::2] /= 3000
    reference = oracle.gated_delta_rule(*(x.double() for x in inputs)).float()
    state = gated_delta_rule(*inputs, SEQ_LEN)
    torch.testing.assert_close(state, reference, rtol=0, atol=4e-7)


def test_a_later_token_changes_no_earlier_output() -> None:
    inputs = drawn(torch.float64, 0.5)
    before = gated_delta_rule(*inputs, 4)
    for x in inputs:
        x[:, :, 7] *= 0.5
    after = gated_delta_rule(*inputs, 4)
    assert torch.equal(before[:, :, :7], after[:, :, :7])
    assert not torch.equal(before[:, :, 7:], after[:, :, 7:])


def test_the_convolution_is_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    convolution = CausalConvolution(5, 3).double()
    weight = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    convolution.weight.data.copy_(weight)
    x = torch.randn(2, 7, 5, generator=generator, dtype=torch.float64)
    padded = F.pad(x.mT, (2, 0))
    expected = F.conv1d(padded, weight.unsqueeze(1), groups=5).mT
    torch.testing.assert_close(convolution(x), expected)


def kernel(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunk_size: int
) -> tuple[Tensor, None]:
    """The recurrence with arguments as fla-core 0.6 documents them: [batch, seq, heads, …]."""
    assert {x.dtype for x in (q, k, v, beta)} == {torch.bfloat16}
    assert g.dtype == torch.float32
    out = oracle.gated_delta_rule(*(x.transpose(1, 2).float() for x in (q, k, v, g, beta)))
    return out.transpose(1, 2).to(q.dtype), None


def test_the_fused_kernel_gets_what_it_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("fla.ops.gated_delta_rule")
    monkeypatch.setattr(module, "chunk_gated_delta_rule", kernel, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    inputs = drawn(torch.float32, 0.5)
    fused, chunks = fused_gated_delta_rule(*inputs, 16), gated_delta_rule(*inputs, 16)
    torch.testing.assert_close(fused.float(), chunks, rtol=0.02, atol=0.02)


def test_without_fla_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fla.ops.gated_delta_rule", None)
    with pytest.raises(BadInput, match=r"fused_delta_rule=True: needs `pip install 'pipegap\[fla"):
        fused_gated_delta_rule(*drawn(torch.float32, 0.5), 16)
