"""What is said of the hybrid alone; the rest is in test_families.py."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipegap.trainer.base.build import build
from pipegap.trainer.config.compose import Composer
from pipegap.trainer.models.loss import cross_entropy
from pipegap.trainer.stages.versions import Versions
from tests.support.hybrid import HYBRID
from tests.support.moe import TOKENS
from tests.support.pretrained import theirs
from tests.support.whole import whole

transformers = pytest.importorskip("transformers")

INPUTS, TARGETS = TOKENS[:, :-1], TOKENS[:, 1:]


def test_rotary_positions_and_kinds_of_layers_reach_the_config(tmp_path: Path) -> None:
    odd = replace(HYBRID, partial_rotary_factor=0.5)
    config = theirs(odd, dict(whole(odd).named_parameters()), tmp_path)[0].config
    assert config.rope_parameters["partial_rotary_factor"] == odd.partial_rotary_factor
    assert config.layer_types == ["linear_attention"] * 3 + ["full_attention"]


def test_it_starts_as_transformers_does() -> None:
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


def test_kinds() -> None:
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
