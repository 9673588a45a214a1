"""The hybrid is Hugging Face's Qwen3-Next: same weights, same logits and gradients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.hybrid import HYBRID
from tests.support.moe import TOKENS, whole
from tests.support.pretrained import assert_equal, in_float64, theirs
from trainer.models.qwen3_next import Qwen3Next

transformers = pytest.importorskip("transformers")

INPUTS, TARGETS = TOKENS[:, :-1], TOKENS[:, 1:]
RECIPES = {
    "tied": HYBRID,
    "untied": replace(HYBRID, tied_embeddings=False, num_kv_heads=4, partial_rotary_factor=1.0),
    "as many keys as values": replace(HYBRID, num_key_heads=4, key_head_size=16, conv_size=3),
    "half of the layers": replace(HYBRID, full_attention_every=2, num_value_heads=6),
}
every_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


def moved(recipe: Qwen3Next) -> nn.Module:
    """The initial model with other vectors: norms, gates and convolutions that start equal."""
    module = whole(recipe)
    for i, (name, kind) in enumerate(recipe.kinds(module).items()):
        if kind == "vector":
            weight = module.get_parameter(name).data
            weight += 0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(i))
    return module


@every_recipe
def test_equals_transformers(recipe: Qwen3Next, tmp_path: Path) -> None:
    """Norms of the heads' outputs, which start small, amplify what float32 rounds."""
    ours = moved(recipe)
    model, report = theirs(recipe, dict(ours.named_parameters()), tmp_path)
    assert type(model) is transformers.Qwen3NextForCausalLM
    assert not any(report.values())
    assert model.num_parameters() == recipe.num_parameters
    assert_equal(recipe, ours, model, TOKENS, logits=1e-4, gradients=1e-4)


@every_recipe
def test_equals_transformers_in_float64(
    recipe: Qwen3Next, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far below any difference that a float32 could hide; with the same rotary angles."""
    ours = moved(recipe)
    model, _ = theirs(recipe, dict(ours.named_parameters()), tmp_path)
    model = in_float64(model, recipe, INPUTS.shape[1], monkeypatch)
    assert_equal(recipe, ours.double(), model, TOKENS, logits=1e-11, gradients=1e-11)
