"""What holds for every family: it is transformers' model, however it is cut and run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipegap.trainer.base.build import build
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.compose import Composer
from pipegap.trainer.models.decoder import Decoder
from pipegap.trainer.models.llama import Llama
from pipegap.trainer.models.loss import cross_entropy
from pipegap.trainer.models.qwen3_moe import Qwen3Moe
from pipegap.trainer.models.qwen3_next import Qwen3Next
from tests.support import gangs, hybrid, moe, small
from tests.support.hybrid import HYBRID
from tests.support.llama import SMALL
from tests.support.moe import MOE, TOKENS
from tests.support.pretrained import assert_equal, in_float64, theirs
from tests.support.whole import whole

transformers = pytest.importorskip("transformers")

INPUTS, TARGETS = TOKENS[:, :-1], TOKENS[:, 1:]
EVERY: dict[str, Decoder] = {
    "llama": SMALL,
    "llama, untied": replace(SMALL, tied_embeddings=False),
    "llama, a key for each query": replace(SMALL, num_kv_heads=6),
    "llama, one key": replace(SMALL, num_kv_heads=1),
    "moe": MOE,
    "moe, untied": replace(MOE, tied_embeddings=False, num_kv_heads=4),
    "moe, one expert per token": replace(MOE, experts_per_token=1, num_experts=5),
    "hybrid": HYBRID,
    "hybrid, untied": replace(
        HYBRID, tied_embeddings=False, num_kv_heads=4, partial_rotary_factor=1.0
    ),
    "hybrid, as many keys as values": replace(
        HYBRID, num_key_heads=4, key_head_size=16, conv_size=3
    ),
    "hybrid, half of the layers": replace(HYBRID, full_attention_every=2, num_value_heads=6),
}
COUNTERPART: dict[type[Decoder], tuple[str, float, float]] = {
    Llama: ("LlamaForCausalLM", 1e-5, 1e-12),
    Qwen3Moe: ("Qwen3MoeForCausalLM", 1e-5, 1e-12),
    Qwen3Next: ("Qwen3NextForCausalLM", 1e-4, 1e-11),
}
"""Transformers' class, and how far logits and gradients may be apart in float32 and in float64.
Norms of the heads' outputs of a hybrid, which start small, amplify what float32 rounds."""
FAMILIES = [SMALL, MOE, HYBRID]
every_recipe = pytest.mark.parametrize("recipe", EVERY.values(), ids=EVERY)
every_family = pytest.mark.parametrize("recipe", FAMILIES, ids=["llama", "moe", "hybrid"])


def moved(recipe: Decoder) -> nn.Module:
    """The initial model with other vectors: norms, gates and convolutions that start equal."""
    module = whole(recipe)
    for i, (name, kind) in enumerate(recipe.kinds(module).items()):
        if kind == "vector":
            weight = module.get_parameter(name).data
            weight += 0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(i))
    return module


@every_recipe
def test_it_is_the_model_of_transformers(
    recipe: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers finds every weight and no other; logits and gradients are equal. In float64,
    with the same rotary angles, far below any difference that a float32 could hide."""
    name, near, nearer = COUNTERPART[type(recipe)]
    ours = moved(recipe)
    model, report = theirs(recipe, dict(ours.named_parameters()), tmp_path)
    assert type(model).__name__ == name
    assert not any(report.values())
    assert model.num_parameters() == recipe.num_parameters
    assert model.config.tie_word_embeddings == recipe.tied_embeddings
    assert_equal(recipe, ours, model, TOKENS, logits=near, gradients=near)
    for module in (ours, model):
        module.zero_grad()
    model = in_float64(model, recipe, INPUTS.shape[1], monkeypatch)
    assert_equal(recipe, ours.double(), model, TOKENS, logits=nearer, gradients=nearer)


@every_family
def test_every_size_of_the_recipe_reaches_the_config(recipe: Decoder, tmp_path: Path) -> None:
    odd = replace(recipe, rope_theta=12345.0, rms_norm_eps=3e-4, initializer_range=0.07)
    model, _ = theirs(odd, dict(whole(odd).named_parameters()), tmp_path)
    assert model.config.rope_parameters["rope_theta"] == odd.rope_theta
    assert model.config.rms_norm_eps == odd.rms_norm_eps
    assert model.config.initializer_range == odd.initializer_range
    # 2 would be an ordinary byte.
    assert (model.config.bos_token_id, model.config.eos_token_id) == (None, None)
    near = COUNTERPART[type(recipe)][1]
    expected = model(INPUTS, use_cache=False).logits
    torch.testing.assert_close(whole(odd)(INPUTS), expected, rtol=0, atol=near)


@pytest.mark.parametrize(
    ("preset", "parameters", "active"),
    [
        ("smollm2_135m", 134_515_008, 134_515_008),
        ("smollm2_360m", 361_821_120, 361_821_120),
        ("nano", 108_928, 108_928),
        ("tiny", 418_752, 418_752),
        ("tiny_deep", 812_736, 812_736),
        ("moe_2b", 1_915_784_192, 506_498_048),
        ("tiny_moe", 2_507_968, 443_584),
        ("micro_moe", 1_306_816, 422_080),
        ("hybrid_10b", 10_131_256_640, 656_323_904),
        ("tiny_hybrid", 1_434_592, 402_400),
    ],
)
def test_presets_have_their_number_of_parameters(preset: str, parameters: int, active: int) -> None:
    recipe = build(Composer().node([f"model={preset}"])["model"])
    with torch.device("meta"):
        module = recipe.stage(0, recipe.split(1, 8))
        config = transformers.AutoConfig.for_model(**recipe.pretrained({}).config)
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert recipe.num_parameters == parameters == sum(p.numel() for p in module.parameters())
    assert model.num_parameters() == parameters
    idle = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    if idle:
        idle *= 1 - recipe.experts_per_token / recipe.num_experts
    assert recipe.num_active_parameters == active == parameters - idle


@pytest.mark.parametrize(
    ("recipe", "key", "sizes"),
    [
        (SMALL, "num_heads", {"num_heads": 5, "num_kv_heads": 1}),
        (SMALL, "num_heads", {"num_heads": 16}),
        (SMALL, "num_kv_heads", {"num_kv_heads": 4}),
        (MOE, "head_size", {"head_size": 15}),
        (MOE, "hidden_size", {"hidden_size": 44}),
        (MOE, "intermediate_size", {"intermediate_size": 20}),
        (MOE, "num_kv_heads", {"num_kv_heads": 3}),
        (MOE, "experts_per_token", {"experts_per_token": 9}),
        (HYBRID, "partial_rotary_factor", {"partial_rotary_factor": 0.3}),
        (HYBRID, "partial_rotary_factor", {"head_size": 20}),
        (HYBRID, "num_key_heads", {"num_key_heads": 3}),
        (HYBRID, "hidden_size", {"hidden_size": 44}),
    ],
)
def test_sizes_that_do_not_go_together_are_bad_input(
    recipe: Decoder, key: str, sizes: dict[str, Any]
) -> None:
    with pytest.raises(BadInput, match=f"model.{key}"):
        replace(recipe, **sizes)


@every_family
def test_the_work_of_stages_is_that_of_the_model(recipe: Decoder) -> None:
    """However it is cut. FLOPs count all of attention, work its causal half and no vectors."""
    seq_len = 1000
    whole_one = sum(recipe.work(recipe.split(1, seq_len), seq_len))
    for num_stages in (2, 4):
        split = recipe.split(num_stages, seq_len)
        assert sum(recipe.work(split, seq_len)) == pytest.approx(whole_one)
    attention = sum(recipe.layer_size(layer).attention for layer in range(recipe.num_layers))
    flops = recipe.flops_per_token(seq_len)
    assert 6 * (whole_one + attention * seq_len) == pytest.approx(flops, rel=0.02)


@every_family
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_stages_in_turn_are_the_whole_model(recipe: Decoder, num_stages: int, tied: bool) -> None:
    recipe = replace(recipe, tied_embeddings=tied)
    model, x, names = whole(recipe), TOKENS, []
    split = recipe.split(num_stages, 8)
    for index in range(num_stages):
        stage = recipe.stage(index, split)
        recipe.initialise(stage, 0)
        names += [name for name, _ in stage.named_parameters()]
        x = stage(x)
    assert torch.equal(x, model(TOKENS))
    assert set(names) == {name for name, _ in model.named_parameters()}
    assert len(names) == len(set(names)) + tied


@pytest.mark.parametrize(
    "recipe",
    [SMALL, *(replace(r, balance=by) for r in (MOE, HYBRID) for by in ("none", "loss", "bias"))],
)
def test_activation_checkpointing_changes_no_number(recipe: Decoder) -> None:
    plain, saving = whole(recipe), whole(replace(recipe, activation_checkpointing=True))
    for module in (plain, saving):
        cross_entropy(module(INPUTS), TARGETS).backward()
    for a, b in zip(plain.parameters(), saving.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


@pytest.mark.parametrize("family", [moe.WORDS, hybrid.WORDS], ids=["moe", "hybrid"])
def test_a_split_backward_gives_the_whole_ones_numbers(
    family: tuple[str, ...], tmp_path: Path
) -> None:
    words = (*family, "pipeline.num_stages=2", "pipeline.num_microbatches=2", "num_updates=3")
    split, whole_one = (
        gangs.emulated(small.config(tmp_path, *words, f"pipeline={pipeline}"))
        for pipeline in ("zero_bubble_h1", "sync")
    )
    assert split.updates == whole_one.updates
    assert all(torch.equal(w, whole_one.weights[name]) for name, w in split.weights.items())
