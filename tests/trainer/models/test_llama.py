"""What is said of the dense Llama alone; the rest is in test_families.py."""

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pipegap.trainer.models.layers import RMSNorm
from tests.support.llama import SMALL, TOKENS
from tests.support.whole import whole


@pytest.mark.parametrize("seq_len", [4, 16])
def test_flops_are_those_of_the_matrix_products(seq_len: int) -> None:
    module, tokens = whole(SMALL), TOKENS[:, :seq_len]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(tokens).sum().backward()
    norms = sum(p.numel() for p in module.parameters() if p.ndim == 1)
    counted = counter.get_total_flops() / tokens.numel()
    assert SMALL.flops_per_token(seq_len) == counted + 6 * norms


def test_initial_weights_depend_on_seed_and_name_only() -> None:
    first, again, other = whole(SMALL), whole(SMALL), whole(SMALL, seed=1)
    for (name, a), b, c in zip(
        first.named_parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(a, b)
        assert torch.equal(a, c) == name.endswith("norm.weight")
        if a.ndim > 1:
            assert abs(a.std().item() / 0.1 - 1) < 0.1
    k, v = (first.get_parameter(f"model.layers.0.self_attn.{name}_proj.weight") for name in "kv")
    assert not torch.equal(k, v)


def test_the_norm_of_bf16_states_is_rounded_once() -> None:
    norm = RMSNorm(512, 1e-5).bfloat16()
    nn.init.ones_(norm.weight)
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(0)).bfloat16()
    half_ulp = torch.finfo(torch.bfloat16).eps / 2
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(norm(x).double(), exact, rtol=half_ulp + 1e-6, atol=0)
