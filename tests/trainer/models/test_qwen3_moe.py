"""What is said of the mixture of experts alone; the rest is in test_families.py."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from pipegap.trainer.models.experts import Routes, _Permuted, _ToExperts, multiplied
from pipegap.trainer.optimizers.routing import kinds
from tests.support.moe import MOE, TOKENS
from tests.support.whole import whole

INPUTS = TOKENS[:, :-1]


def test_biases_are_parameters() -> None:
    recipe = replace(MOE, balance="bias")
    module = whole(recipe)
    assert recipe.num_parameters == sum(p.numel() for p in module.parameters())
    assert recipe.num_parameters == MOE.num_parameters + MOE.num_layers * MOE.num_experts


@pytest.mark.parametrize("tied", [True, False])
def test_flops_are_those_of_active_matrices_and_attention(tied: bool) -> None:
    recipe, d, seq_len = replace(MOE, tied_embeddings=tied), 48, 32
    attention = 2 * d * 64 + 2 * d * 32
    layer = attention + 8 * d + 2 * 3 * d * 24  # router, two experts of three matrices
    norms = 4 * (2 * d + 2 * 16) + d
    products = 4 * layer + 61 * d  # the head; the lookup of an embedding is no product
    assert recipe.flops_per_token(seq_len) == 6 * (products + norms) + 12 * 4 * 64 * seq_len


def test_every_expert_starts_from_a_stream_of_its_own() -> None:
    """So an expert's initial weights do not depend on how many there are."""
    many = dict(whole(MOE).named_parameters())
    few = dict(whole(replace(MOE, num_experts=5)).named_parameters())
    for name, stack in many.items():
        if ".experts." in name:
            assert torch.equal(stack[:5], few[name])
            assert abs(stack.std().item() / 0.1 - 1) < 0.1
            assert not any(torch.equal(stack[0], other) for other in stack[1:])
    up, gate = (many[f"model.layers.0.mlp.experts.{name}_proj"] for name in ("up", "gate"))
    assert not torch.equal(up, gate)
    assert all((w == 1).all() for name, w in many.items() if "norm" in name)


def test_kinds() -> None:
    for router in ("matrix", "vector"):
        recipe = replace(MOE, router=router, balance="bias")
        every = recipe.kinds(whole(recipe))
        kind_of = {name.removeprefix("model.layers.0."): kind for name, kind in every.items()}
        assert kind_of["mlp.gate.weight"] == router
        assert kind_of["mlp.balance.bias"] == "balance"
        assert kind_of["self_attn.q_norm.weight"] == "vector"
        assert kind_of["self_attn.q_proj.weight"] == "matrix"
        stacks = [f"mlp.experts.{name}_proj" for name in ("gate", "up", "down")]
        assert {kind_of[name] for name in stacks} == {"experts"}


def test_a_matrix_with_one_row_is_a_vector() -> None:
    assert kinds(nn.Linear(4, 1, bias=False)) == {"weight": "vector"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_dispatch_is_a_loop_over_experts(dtype: torch.dtype) -> None:
    """Some experts get no token, one gets most."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.stack([torch.randperm(3, generator=generator)[:2] for _ in range(20)])
    chosen[chosen == 1] = 4
    routes = Routes.of(chosen, 6)
    assert routes.loads.tolist() == torch.bincount(chosen.flatten(), minlength=6).tolist()
    pairs = chosen.flatten()
    assert torch.equal(pairs[routes.order], pairs.sort(stable=True).values)
    assert torch.equal(routes.order[routes.inverse], torch.arange(40))
    rows = torch.randn(40, 16, generator=generator).to(dtype)
    stack = torch.randn(6, 8, 16, generator=generator).to(dtype)
    order = pairs.sort(stable=True).values
    expected = torch.cat([rows[order == e] @ stack[e].T for e in range(6)])
    assert torch.equal(multiplied(rows, stack, routes.ends), expected)


def test_tokens_on_their_way_to_experts_and_back_are_copies() -> None:
    """To the bit what indexing gives, forward and backward."""
    generator = torch.Generator().manual_seed(0)
    routes = Routes.of(torch.rand(20, 6, generator=generator).topk(2).indices, 6)
    tokens = torch.randn(20, 16, generator=generator, requires_grad=True)
    gradient = torch.randn(40, 16, generator=generator)
    rows = _ToExperts.apply(tokens, routes.order, routes.inverse)
    back = _Permuted.apply(rows, routes.inverse, routes.order)
    assert torch.equal(rows, tokens[routes.order // 2])
    assert torch.equal(back, tokens.repeat_interleave(2, 0))
    back.backward(gradient)
    assert tokens.grad is not None
    assert torch.equal(tokens.grad, gradient.unflatten(0, (20, 2)).sum(1))


def test_the_router_reads_in_fp32() -> None:
    """In bf16 the last chosen and the first idle one of many experts are often equal."""
    recipe = replace(MOE, num_experts=64, experts_per_token=8)
    module = whole(recipe).bfloat16()
    for name, weight in whole(recipe).named_parameters():
        if name.endswith("mlp.gate.weight"):  # as `Versions` leaves it
            module.get_submodule(name.removesuffix(".weight")).float().weight.data.copy_(weight)
    seen: list[Tensor] = []
    for layer in module.model["layers"].children():
        layer.mlp.gate.register_forward_hook(lambda _, __, chances: seen.append(chances))
    module(INPUTS)
    ranked = torch.cat(seen).sort(-1, descending=True).values
    assert ranked.dtype == torch.float32
    assert not (ranked[:, 7] == ranked[:, 8]).any()
