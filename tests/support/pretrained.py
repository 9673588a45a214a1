"""A model beside its counterpart in transformers: loaded from the export, logits, gradients."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipegap.trainer.models.decoder import Decoder
from pipegap.trainer.models.export import save_final
from pipegap.trainer.models.layers import rotation


def theirs(recipe: Decoder, weights: Mapping[str, Tensor], folder: Path) -> tuple[Any, Any]:
    """Transformers' model from the exported folder, and what its loading reports."""
    import transformers

    save_final(weights, recipe, folder)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "final", output_loading_info=True
    )
    return model, report


def in_float64(model: Any, recipe: Decoder, seq_len: int, patch: pytest.MonkeyPatch) -> Any:
    """The model without the places where it rounds to float32; with our rotary angles."""
    model.set_experts_implementation("eager")
    for name in ("float", "float32"):  # to which it rounds norms and chances
        patch.setattr(torch, name, torch.float64)
    patch.setattr(Tensor, "float", Tensor.double)
    turned = torch.empty(1, seq_len, dtype=torch.float64)
    cos, sin = rotation(turned, recipe.rotary_size, recipe.rope_theta)
    half = recipe.rotary_size // 2
    angles = cos[None], torch.cat((-sin[:, :half], sin[:, half:]), -1)[None]
    patch.setattr(model.model.rotary_emb, "forward", lambda *_, **__: angles)
    return model.double()


def assert_equal(
    recipe: Decoder, ours: nn.Module, model: Any, tokens: Tensor, logits: float, gradients: float
) -> None:
    """Logits and gradients differ by at most these two numbers."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    predicted, expected = ours(inputs), model(inputs, use_cache=False).logits
    torch.testing.assert_close(predicted, expected, rtol=0, atol=logits)
    for values in (predicted, expected):
        F.cross_entropy(values.flatten(0, 1), targets.flatten()).backward()
    mine = recipe.pretrained({name: p.grad for name, p in ours.named_parameters()}).tensors
    reference = dict(model.named_parameters())
    assert set(reference) <= set(mine)
    for name, weight in reference.items():
        torch.testing.assert_close(mine[name], weight.grad, rtol=0, atol=gradients)
