"""What is said of one family of models alone; the rest is in test_families.py."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pipegap.trainer.base.build import build
from pipegap.trainer.config.compose import Composer
from pipegap.trainer.models.layers import RMSNorm, cross_entropy
from pipegap.trainer.models.qwen3_moe import Routes, _Permuted, _ToExperts, multiplied
from pipegap.trainer.optimizers.routing import kinds
from pipegap.trainer.stages.versions import Versions
from tests.support import models
from tests.support.models import HYBRID, MOE, TOKENS_OF_MOE, theirs, whole

pytest.importorskip("transformers")
INPUTS, TARGETS = TOKENS_OF_MOE[:, :-1], TOKENS_OF_MOE[:, 1:]


def test_biases_of_a_mixture_are_parameters() -> None:
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


def test_kinds_of_a_mixture() -> None:
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


def test_rotary_positions_and_kinds_of_layers_reach_the_config(tmp_path: Path) -> None:
    odd = replace(HYBRID, partial_rotary_factor=0.5)
    config = theirs(odd, dict(whole(odd).named_parameters()), tmp_path)[0].config
    assert config.rope_parameters["partial_rotary_factor"] == odd.partial_rotary_factor
    assert config.layer_types == ["linear_attention"] * 3 + ["full_attention"]


def test_a_hybrid_starts_as_transformers_does() -> None:
    """Norms are 1 + w with w = 0, but for that of the heads' outputs; decays are drawn."""
    recipe = replace(HYBRID, num_value_heads=512, hidden_size=8, key_head_size=2, value_head_size=2)
    weights = {
        name.removeprefix("model.layers.0."): w for name, w in whole(recipe).named_parameters()
    }
    assert not weights["input_layernorm.weight"].any()
    assert not weights["post_attention_layernorm.weight"].any()
    assert (weights["self_attn.norm.weight"] == 1).all()
    assert (weights["self_attn.dt_bias"] == 1).all()
    decay = weights["self_attn.A_log"].exp()
    assert 0.01 <= decay.min() < 1
    assert 15 < decay.max() <= 16
    assert abs(decay.mean().item() / 8 - 1) < 0.1
    assert abs(weights["self_attn.conv1d.weight"].std().item() / 0.1 - 1) < 0.1


def test_kinds_of_a_hybrid() -> None:
    """What multiplies no vector of features is no matrix; each projection is one of its own."""
    kinds = HYBRID.kinds(whole(HYBRID))
    delta, full = (
        {n.removeprefix(at): k for n, k in kinds.items() if n.startswith(at)}
        for at in ("model.layers.0.", "model.layers.3.")
    )
    mixer = {f"self_attn.{name}_proj.weight": "matrix" for name in (*"qkvzba", "out")}
    mixer |= {f"self_attn.{name}": "vector" for name in ("A_log", "dt_bias")}
    mixer |= {f"self_attn.{name}.weight": "vector" for name in ("conv1d", "norm")}
    rest = {f"mlp.experts.{name}_proj": "experts" for name in ("gate", "up", "down")}
    rest |= {f"mlp.shared_expert.{n}_proj.weight": "matrix" for n in ("gate", "up", "down")}
    rest |= {"mlp.gate.weight": "matrix", "mlp.shared_expert_gate.weight": "vector"}
    rest |= {f"{n}_layernorm.weight": "vector" for n in ("input", "post_attention")}
    assert delta == mixer | rest
    mixer = {f"self_attn.{name}_proj.weight": "matrix" for name in (*"qkvo", "gate")}
    mixer |= {f"self_attn.{name}_norm.weight": "vector" for name in "qk"}
    assert full == mixer | rest


def test_the_gates_of_the_state_read_in_fp32() -> None:
    """And nothing else does but the router."""
    module = whole(HYBRID)
    versions = Versions(module, [1] * len(list(module.parameters())), torch.bfloat16)
    leaves = versions.bind([0] * len(versions.names), 0)
    wide = {
        name.split(".", 3)[-1]
        for name, leaf in zip(versions.names, leaves, strict=True)
        if leaf.dtype == torch.float32
    }
    assert wide == {"self_attn.A_log", "self_attn.dt_bias", "mlp.gate.weight"}
    logits = module(INPUTS)
    cross_entropy(logits, TARGETS).backward()
    assert logits.dtype == torch.bfloat16
    assert all(leaf.grad is not None and leaf.grad.dtype == leaf.dtype for leaf in leaves)


@pytest.mark.parametrize("tied", [True, False])
def test_flops_are_those_of_active_weights_states_and_attention(tied: bool) -> None:
    recipe, d, seq_len = replace(HYBRID, tied_embeddings=tied), 48, 32
    full = 3 * d * 64 + 2 * d * 32 + 2 * 16  # q, gate and output; k and v; norms
    key, value = 2 * 8, 4 * 12
    projections = d * (key + key + value + value + 4 + 4) + value * d
    delta = projections + 4 * (key + key + value) + 4 + 4 + 12  # convolution, gates, norm
    state = 4 * 4 * 8 * 12  # in each of 4 heads: decay, two reads, one write
    mixture = 8 * d + 2 * 3 * d * 24 + 3 * d * 40 + d  # router, two experts, the shared one
    products = full + 3 * (delta + state) + 4 * (mixture + 2 * d) + d + 61 * d
    assert recipe.flops_per_token(seq_len) == 6 * products + 12 * 64 * seq_len


@pytest.mark.parametrize(
    ("seq_len", "sizes"),
    [
        # The head, 128,000 · 1,024 = 131.1 M products a token, is 7.5 layers: 18 of Gated DeltaNet
        # with 18.6 M, and 6 of attention with 13.9 M;
        (1024, [8, 8, 8, 0]),
        # of which attention over 65,536 tokens makes 80.0 M. The 3rd stage has two of these.
        (65536, [7, 7, 7, 3]),
    ],
)
def test_layers_are_split_by_their_work(seq_len: int, sizes: list[int]) -> None:
    """Otherwise than if all layers were equal."""
    recipe = build(Composer().node(["model=hybrid_10b"])["model"])
    assert [len(layers) for layers in recipe.split(4, seq_len)] == sizes


@pytest.mark.parametrize("seq_len", [4, 16])
def test_flops_are_those_of_the_matrix_products(seq_len: int) -> None:
    module, tokens = whole(models.SMALL), models.TOKENS[:, :seq_len]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(tokens).sum().backward()
    norms = sum(p.numel() for p in module.parameters() if p.ndim == 1)
    counted = counter.get_total_flops() / tokens.numel()
    assert models.SMALL.flops_per_token(seq_len) == counted + 6 * norms


def test_initial_weights_depend_on_seed_and_name_only() -> None:
    first, again, other = whole(models.SMALL), whole(models.SMALL), whole(models.SMALL, seed=1)
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
