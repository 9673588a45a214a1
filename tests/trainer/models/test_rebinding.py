"""A stage reads its weights when it is called: versions are other leaves, re-bound on it."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from pipegap.trainer.models.decoder import Decoder
from pipegap.trainer.models.loss import cross_entropy
from pipegap.trainer.stages.versions import Versions
from tests.support.hybrid import HYBRID
from tests.support.llama import SMALL, TOKENS
from tests.support.whole import whole

RECIPES: list[Decoder] = [SMALL, replace(SMALL, tied_embeddings=False)]
RECIPES += [replace(SMALL, num_kv_heads=6), replace(SMALL, activation_checkpointing=True)]
RECIPES += [HYBRID, replace(HYBRID, activation_checkpointing=True)]
IDS = ["tied", "untied", "ungrouped", "checkpointing", "hybrid", "hybrid checkpointing"]


def loss(logits: Tensor) -> Tensor:
    return cross_entropy(logits, TOKENS[:, 1:])


def moved(module: nn.Module) -> tuple[Versions, list[nn.Parameter], list[nn.Parameter]]:
    """The versions 0 and 1 of a module, version 1 with other weights than version 0."""
    versions = Versions(module, [1] * len(list(module.parameters())), torch.float32)
    for weight in versions.open():
        weight.add_(0.03)
    versions.close(versions.master)
    old, new = ([v] * len(versions.names) for v in (0, 1))
    return versions, versions.bind(old, 0), versions.bind(new, 1)


@pytest.mark.parametrize("recipe", RECIPES, ids=IDS)
def test_rebound_leaves_are_what_is_read_and_what_gets_the_gradient(recipe: Decoder) -> None:
    module, expected = whole(recipe), whole(recipe)
    _, old, new = moved(module)
    with torch.no_grad():
        for weight in expected.parameters():
            weight.add_(0.03)
    for model in (module, expected):
        loss(model(TOKENS[:, :-1])).backward()
    assert all(leaf.grad is None for leaf in old)
    for leaf, weight in zip(new, expected.parameters(), strict=True):
        assert torch.equal(leaf.grad, weight.grad)
