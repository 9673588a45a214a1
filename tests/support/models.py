"""A small Llama, mixture of experts and hybrid, tokens for them, and transformers' own ones."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.executors.emulated import Emulated
from pipegap.trainer.executors.executor import Clip
from pipegap.trainer.models.decoder import Decoder
from pipegap.trainer.models.export import save_final
from pipegap.trainer.models.layers import cross_entropy, rotation
from pipegap.trainer.models.llama import Llama
from pipegap.trainer.models.qwen3_moe import Qwen3Moe
from pipegap.trainer.models.qwen3_next import Qwen3Next
from pipegap.trainer.optimizers.routing import is_entrywise
from pipegap.trainer.optimizers.state import optimizer_in_parts
from pipegap.trainer.schedules.operations import Schedule
from pipegap.trainer.stages.stage import Stage
from tests.support import toy
from tests.support.delayed import ADAMW

DECODER: dict[str, Any] = {
    **{"vocab_size": 61, "hidden_size": 48, "num_layers": 4, "rope_theta": 100000.0},
    **{"initializer_range": 0.1, "tied_embeddings": True, "activation_checkpointing": False},
}
SMALL = Llama(**DECODER, num_heads=6, num_kv_heads=2, intermediate_size=80, rms_norm_eps=1e-5)
TOKENS = torch.randint(0, 61, (3, 18), generator=torch.Generator().manual_seed(0))
SIZES: dict[str, Any] = {
    **DECODER,
    **{"num_heads": 4, "num_kv_heads": 2, "head_size": 16, "rms_norm_eps": 1e-6},
    **{"num_experts": 8, "experts_per_token": 2, "intermediate_size": 24},
    **{"router": "matrix", "balance": "none", "balance_coefficient": 0.05},
}
"""The keys of any small model with experts."""
MOE = Qwen3Moe(**SIZES)
TOKENS_OF_MOE = torch.randint(0, 61, (3, 33), generator=torch.Generator().manual_seed(0))
WORDS = (
    *("model=micro_moe", "model.num_heads=2", "model.head_size=8"),
    *("model.intermediate_size=16", "model.num_layers=4"),
)
"""After those of `small`, a mixture as small."""
HYBRID = Qwen3Next(
    **SIZES,
    full_attention_every=4,
    partial_rotary_factor=0.25,
    num_key_heads=2,
    num_value_heads=4,
    key_head_size=8,
    value_head_size=12,
    conv_size=4,
    chunk_size=12,
    shared_intermediate_size=40,
)
WORDS_OF_HYBRID = (
    *("model=tiny_hybrid", "model.num_heads=2", "model.head_size=8", "model.num_layers=4"),
    *("model.num_key_heads=1", "model.num_value_heads=2", "model.key_head_size=8"),
    *("model.value_head_size=8", "model.chunk_size=8", "model.num_experts=4"),
    *("model.intermediate_size=16", "model.shared_intermediate_size=16"),
    "model.full_attention_every=2",
)
"""After those of `small`, a hybrid as small."""


# A model beside its counterpart in transformers: loaded from the export, logits, gradients.


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


def assert_near(ours: Tensor, theirs: Tensor, share: float, of: Tensor | None = None) -> None:
    """No entry is further from the reference than a share of the largest entry of it, or of `of`.

    Processors and kernels sum in another order and fuse other products, and so round otherwise: the
    error of a sum grows with its terms, and not with what is left of them.
    """
    scale = (theirs if of is None else of).detach().abs().max().item()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=share * scale)


def assert_equal(
    recipe: Decoder, ours: nn.Module, model: Any, tokens: Tensor, logits: float, gradients: float
) -> None:
    """Logits and gradients differ by at most these shares of the largest ones."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    predicted, expected = ours(inputs), model(inputs, use_cache=False).logits
    assert_near(predicted, expected, logits)
    for values in (predicted, expected):
        F.cross_entropy(values.flatten(0, 1), targets.flatten()).backward()
    mine = recipe.pretrained({name: p.grad for name, p in ours.named_parameters()}).tensors
    reference = dict(model.named_parameters())
    assert set(reference) <= set(mine)
    largest = torch.stack([weight.grad.abs().max() for weight in reference.values()])
    for name, weight in reference.items():
        assert_near(mine[name], weight.grad, gradients, of=largest)


# A decoder with its initial weights, as one stage and as several that train.

EMBEDDING = "model.embed_tokens.weight"


def whole(recipe: Decoder, seed: int = 0) -> nn.Module:
    module = recipe.stage(0, recipe.split(1, 8))
    recipe.initialise(module, seed)
    return module


def modules(recipe: Decoder, num_stages: int) -> list[nn.Module]:
    """The stages, in float64."""
    split = recipe.split(num_stages, 8)
    stages = [recipe.stage(index, split) for index in range(num_stages)]
    for stage in stages:
        recipe.initialise(stage, 0)
    return [stage.double() for stage in stages]


def emulated(
    recipe: Decoder,
    schedule: Schedule,
    batch: Callable[[int], Tensor],
    num_replicas: int = 1,
    *,
    clips_by_stage: bool = False,
) -> Emulated:
    """By AdamW with Error Feedback and a clip, in float64: a different order of sums stays far
    below any difference that counts."""
    stages, tied = [], frozenset([EMBEDDING] if schedule.num_stages > 1 else [])
    for module, lag in zip(modules(recipe, schedule.num_stages), schedule.lags, strict=True):
        stages.append(
            Stage(
                module,
                recipe.kinds(module),
                partial(optimizer_in_parts, ADAMW, is_entrywise=is_entrywise(ADAMW.func)),
                partial(ErrorFeedback, schedule.num_updates, coefficient=1.0, lag=1),
                toy.lr_factor,
                lag=lag,
                tied=tied,
                tied_lag=schedule.tied_lag,
                dtype=torch.float64,
            )
        )
    clip = Clip(0.5, by_stage=clips_by_stage)
    return Emulated(stages, schedule, batch, cross_entropy, clip, num_replicas)
