"""What holds for every family with experts: sizes of its presets, stages, ways to go backward."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import gangs, hybrid, moe, small
from tests.support.hybrid import HYBRID
from tests.support.moe import MOE, TOKENS
from tests.support.whole import whole
from trainer.base.build import build
from trainer.base.errors import BadInput
from trainer.config.compose import compose_node
from trainer.models.loss import cross_entropy
from trainer.models.mixture import MixtureDecoder

transformers = pytest.importorskip("transformers")

INPUTS, TARGETS = TOKENS[:, :-1], TOKENS[:, 1:]
every_family = pytest.mark.parametrize("recipe", [MOE, HYBRID], ids=["moe", "hybrid"])


@pytest.mark.parametrize(
    ("preset", "parameters", "active"),
    [
        ("moe_2b", 1_915_784_192, 506_498_048),
        ("tiny_moe", 2_507_968, 443_584),
        ("micro_moe", 1_306_816, 422_080),
        ("hybrid_10b", 10_131_256_640, 656_323_904),
        ("tiny_hybrid", 1_434_592, 402_400),
    ],
)
def test_presets_have_their_number_of_parameters(preset: str, parameters: int, active: int) -> None:
    recipe = build(compose_node([f"model={preset}"])["model"])
    with torch.device("meta"):
        module = recipe.stage(0, recipe.split(1, 8))
        config = transformers.AutoConfig.for_model(**recipe.pretrained({}).config)
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert recipe.num_parameters == parameters == sum(p.numel() for p in module.parameters())
    assert model.num_parameters() == parameters
    idle = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    share = recipe.experts_per_token / recipe.num_experts
    assert recipe.num_active_parameters == active == parameters - idle * (1 - share)


@pytest.mark.parametrize(
    ("recipe", "key", "sizes"),
    [
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
    recipe: MixtureDecoder, key: str, sizes: dict[str, Any]
) -> None:
    with pytest.raises(BadInput, match=f"model.{key}"):
        replace(recipe, **sizes)


@every_family
def test_the_work_of_stages_is_that_of_the_model(recipe: MixtureDecoder) -> None:
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
@pytest.mark.parametrize("num_stages", [2, 4])
def test_stages_in_turn_are_the_whole_model(recipe: MixtureDecoder, num_stages: int) -> None:
    split, x = recipe.split(num_stages, 8), TOKENS
    for index in range(num_stages):
        stage = recipe.stage(index, split)
        recipe.initialise(stage, 0)
        x = stage(x)
    assert torch.equal(x, whole(recipe)(TOKENS))


@every_family
def test_activation_checkpointing_changes_no_number(recipe: MixtureDecoder) -> None:
    for balance in ("none", "loss", "bias"):
        recipe = replace(recipe, balance=balance)
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
