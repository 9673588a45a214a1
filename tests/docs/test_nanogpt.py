"""modded-nanogpt's model: against the example's, which is written on its own, and its protocol."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from examples.nanogpt.gpt import GPT
from examples.nanogpt.nanogpt import NanoGPT
from pipegap.trainer.base.build import build
from pipegap.trainer.base.code import use_code
from pipegap.trainer.config.compose import Composer
from pipegap.trainer.config.identity import version_of
from pipegap.trainer.models.loss import cross_entropy
from tests.support import gangs, small
from tests.support.markdown import ROOT
from tests.support.whole import whole

SMALL = NanoGPT(
    vocab_size=50,
    hidden_size=256,
    num_layers=3,
    num_heads=2,
    num_kv_heads=2,
    intermediate_size=1024,
    rope_theta=1024 ** (32 / 31),
    rms_norm_eps=torch.finfo(torch.float64).eps,
    initializer_range=(0.33 / 256) ** 0.5,
    embedding_range=1.0,
    attention_scale=0.12,
    logit_cap=15.0,
    activation_checkpointing=False,
)
TOKENS = torch.randint(50, (2, 17), generator=torch.Generator().manual_seed(0))
INPUTS, TARGETS = TOKENS[:, :-1], TOKENS[:, 1:]
PAIRS = [*range(64, 96), *range(32), *range(32, 64), *range(96, 128)]
"""Places in a head of theirs, in the order of ours: pairs that are turned come first."""
CODE = f"code={ROOT / 'examples' / 'nanogpt'}"
WORDS = (
    *(CODE, "model=nanogpt", "model.vocab_size=257", "model.hidden_size=32", "model.num_layers=3"),
    *("model.num_heads=2", "model.num_kv_heads=1", "model.intermediate_size=64", "num_updates=6"),
)


def own() -> Any:
    """The recipe of the YAML."""
    use_code(str(ROOT / "examples" / "nanogpt"))
    return build(Composer().node([CODE, "model=nanogpt"])["model"])


def moved() -> nn.Module:
    """The small model in float64 with other values: biases, head and last matrices start at 0."""
    module = whole(SMALL).double()
    for i, weight in enumerate(module.parameters()):
        drawn = torch.randn(weight.shape, generator=torch.Generator().manual_seed(i))
        weight.data += 0.1 * drawn
    return module


def as_theirs(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of our weights, by the names and in the order of rows of the example's."""
    names = {"model.embed_tokens.weight": "embedding.weight", "lm_head.": "head."}
    names |= {"model.embed_tokens.gain": "first_norm.weight", "model.norm.": "last_norm."}
    names |= {"model.layers.": "blocks.", "input_layernorm": "norm1", "self_attn": "attention"}
    names |= {"post_attention_layernorm": "norm2", "mlp.up_proj": "into", "mlp.down_proj": "out"}
    names |= {f"{part}_proj": part for part in "qkv"} | {"o_proj": "out"}
    theirs = {}
    for ours_name, ours_tensor in ours.items():
        name, tensor = ours_name, ours_tensor
        if ".q_proj" in name or ".k_proj" in name:
            heads, places = tensor.unflatten(0, (2, 128)), torch.tensor(PAIRS)
            tensor = torch.empty_like(heads).index_copy_(1, places, heads).flatten(0, 1)
        for mine, other in names.items():
            name = name.replace(mine, other)
        theirs[name] = tensor
    return theirs


def test_it_is_the_model_of_the_example() -> None:
    """Logits and gradients, but for rotations, which the example computes in fp32."""
    ours, theirs = moved(), GPT(50, 3, 256).double()
    theirs.load_state_dict(as_theirs(ours.state_dict()))
    logits = ours(INPUTS)
    torch.testing.assert_close(logits, theirs(INPUTS).double(), rtol=1e-6, atol=1e-6)
    for module in (ours, theirs):
        cross_entropy(module(INPUTS), TARGETS).backward()
    gradients = as_theirs({name: w.grad for name, w in ours.named_parameters()})
    for name, weight in theirs.named_parameters():
        error = (gradients[name] - weight.grad).norm() / weight.grad.norm()
        assert error < 1e-5, name


def test_its_size_is_that_of_track_3() -> None:
    recipe = own()
    with torch.device("meta"):
        module, theirs = recipe.stage(0, recipe.split(1, 8)), GPT(50_304, 12, 768)
    sizes = [sum(w.numel() for w in model.parameters()) for model in (module, theirs)]
    assert [*sizes, recipe.num_parameters, recipe.num_active_parameters] == [162_354_816] * 4
    kinds = recipe.kinds(module)
    assert {name for name, kind in kinds.items() if kind == "embedding"} == {
        "model.embed_tokens.weight",
        "lm_head.weight",
    }
    ranks = {"matrix": 2, "embedding": 2, "vector": 1}
    assert all(ranks[kinds[name]] == w.ndim for name, w in module.named_parameters())


def test_it_starts_where_the_published_log_does() -> None:
    """step:0/3375 val_loss:10.82584, whatever the data: the head starts at 0."""
    module = whole(replace(SMALL, vocab_size=50_304))
    assert cross_entropy(module(INPUTS), TARGETS).item() == pytest.approx(10.82584, abs=5e-6)
    assert module.get_parameter("model.embed_tokens.weight").std().item() == pytest.approx(1, 0.01)
    up = module.get_parameter("model.layers.1.mlp.up_proj.weight")
    assert up.std().item() == pytest.approx((0.33 / 256) ** 0.5, 0.01)
    zeros = [name for name, w in module.named_parameters() if not w.any()]
    biases = [name for name, _ in module.named_parameters() if name.endswith("bias")]
    outs = [
        f"model.layers.{i}.{part}.weight"
        for i in range(3)
        for part in ("self_attn.o_proj", "mlp.down_proj")
    ]
    assert {*zeros} == {*biases, *outs, "lm_head.weight"}


def test_it_trains_alike_in_one_stage_and_in_two(tmp_path: Path) -> None:
    """Under a delay, by SGD, which enlarges no rounding."""
    words = (*WORDS, "optimizer=sgd", "pipeline=pipedream_2bw", "pipeline.num_microbatches=2")
    one, two = (
        gangs.emulated(small.config(tmp_path, *words, f"pipeline.num_stages={stages}"))
        for stages in (1, 2)
    )
    for name, weight in one.weights.items():
        torch.testing.assert_close(two.weights[name], weight)
    assert all(weight.any() for weight in one.weights.values())


def test_its_head_counts_as_its_own(tmp_path: Path) -> None:
    """HEAD_FIXES is 1, and the model has no key that says that its head is its own."""
    assert version_of(small.config(tmp_path, *WORDS)) == 3
