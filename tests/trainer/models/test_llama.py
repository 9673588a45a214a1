"""The model is Hugging Face's Llama: same weights, same logits and gradients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.support.llama import SMALL, TOKENS
from tests.support.whole import whole
from trainer.base.build import build
from trainer.base.errors import BadInput
from trainer.config.compose import compose_node
from trainer.models.export import save_final
from trainer.models.layers import RMSNorm
from trainer.models.loss import cross_entropy

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize(("tied", "num_kv_heads"), [(True, 2), (False, 2), (True, 6), (True, 1)])
def test_equals_transformers(tied: bool, num_kv_heads: int, tmp_path: Path) -> None:
    recipe = replace(SMALL, tied_embeddings=tied, num_kv_heads=num_kv_heads)
    ours = whole(recipe)
    save_final(dict(ours.named_parameters()), recipe, tmp_path)
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "final")
    inputs, targets = TOKENS[:, :-1], TOKENS[:, 1:]
    logits, expected = ours(inputs), theirs(inputs).logits
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    cross_entropy(logits, targets).backward()
    F.cross_entropy(expected.flatten(0, 1), targets.flatten()).backward()
    reference = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, reference[name].grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("smollm2_135m", 134_515_008),
        ("smollm2_360m", 361_821_120),
        ("nano", 108_928),
        ("tiny", 418_752),
        ("tiny_deep", 812_736),
    ],
)
def test_presets_have_the_published_number_of_parameters(preset: str, expected: int) -> None:
    recipe = build(compose_node([f"model={preset}"])["model"])
    with torch.device("meta"):
        module = recipe.stage(0, recipe.split(1, 8))
        theirs = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**recipe.pretrained({}).config)
        )
    assert recipe.num_parameters == expected == sum(p.numel() for p in module.parameters())
    assert expected == theirs.num_parameters()


@pytest.mark.parametrize("seq_len", [4, 16])
def test_flops_are_those_of_the_matrix_products(seq_len: int) -> None:
    module, tokens = whole(SMALL), TOKENS[:, :seq_len]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(tokens).sum().backward()
    norms = sum(p.numel() for p in module.parameters() if p.ndim == 1)
    counted = counter.get_total_flops() / tokens.numel()
    assert SMALL.flops_per_token(seq_len) == counted + 6 * norms


@pytest.mark.parametrize(
    ("key", "sizes"),
    [
        ("model.num_heads", {"num_heads": 5, "num_kv_heads": 1}),
        ("model.num_heads", {"num_heads": 16}),
        ("model.num_kv_heads", {"num_kv_heads": 4}),
    ],
)
def test_sizes_that_do_not_divide_are_bad_input(key: str, sizes: dict[str, int]) -> None:
    with pytest.raises(BadInput, match=key):
        replace(SMALL, **sizes)


def test_a_stage_without_a_layer_is_bad_input() -> None:
    with pytest.raises(BadInput, match=r"pipeline\.num_stages"):
        SMALL.split(5, 8)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_stages_in_turn_are_the_whole_model(num_stages: int, tied: bool) -> None:
    recipe = replace(SMALL, tied_embeddings=tied)
    model, x = whole(recipe), TOKENS
    split = recipe.split(num_stages, 8)
    stages = [recipe.stage(index, split) for index in range(num_stages)]
    for stage in stages:
        recipe.initialise(stage, 0)
        x = stage(x)
    assert torch.equal(x, model(TOKENS))
    names = [name for stage in stages for name, _ in stage.named_parameters()]
    assert set(names) == {name for name, _ in model.named_parameters()}
    assert len(names) == len(set(names)) + tied


def test_initial_weights_depend_on_seed_and_name_only() -> None:
    one, again, other = whole(SMALL), whole(SMALL), whole(SMALL, seed=1)
    for (name, a), b, c in zip(
        one.named_parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(a, b)
        assert torch.equal(a, c) == name.endswith("norm.weight")
        if a.ndim > 1:
            assert abs(a.std().item() / 0.1 - 1) < 0.1
    k, v = (one.get_parameter(f"model.layers.0.self_attn.{name}_proj.weight") for name in "kv")
    assert not torch.equal(k, v)


def test_activation_checkpointing_changes_no_number() -> None:
    plain, saving = whole(SMALL), whole(replace(SMALL, activation_checkpointing=True))
    for module in (plain, saving):
        cross_entropy(module(TOKENS[:, :-1]), TOKENS[:, 1:]).backward()
    for a, b in zip(plain.parameters(), saving.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_bf16_leaves_give_finite_fp32_loss() -> None:
    module = whole(SMALL).to(torch.bfloat16)
    loss = cross_entropy(module(TOKENS[:, :-1]), TOKENS[:, 1:])
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in module.parameters())


def test_the_norm_of_bf16_states_is_rounded_once() -> None:
    norm = RMSNorm(512, 1e-5).bfloat16()
    nn.init.ones_(norm.weight)
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(0)).bfloat16()
    half_ulp = torch.finfo(torch.bfloat16).eps / 2
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(norm(x).double(), exact, rtol=half_ulp + 1e-6, atol=0)
