"""A backward in halves gives the whole one's numbers, to the last bit, and keeps less for later."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.parts import build_emulated, build_parts
from pipegap.trainer.schedules.proof import interleave
from pipegap.trainer.stages.backward import WeightsLater
from tests.support import gangs, small

CPU = torch.device("cpu")
SHAPE = ("model.num_layers=4", "pipeline.num_microbatches=4", "batch_size=8", "num_updates=4")


def config(folder: Path, *words: str) -> dict[str, Any]:
    return small.config(folder, *SHAPE, "correction=none", *words)


def assert_equal(split_config: dict[str, Any], whole_config: dict[str, Any]) -> None:
    """Both train the same, to the last bit."""
    split, whole = gangs.emulated(split_config), gangs.emulated(whole_config)
    assert split.updates == whole.updates
    assert split.val_loss == whole.val_loss
    assert all(torch.equal(split.weights[name], whole.weights[name]) for name in whole.weights)


@pytest.mark.parametrize(
    ("p", "word"),
    [
        *((1, "optimizer=adamw"), (4, "optimizer=adamw"), (4, "model.tied_embeddings=false")),
        *((1, "dtype=bfloat16"), (2, "num_replicas=2")),
    ],
)
def test_split_equals_whole(tmp_path: Path, p: int, word: str) -> None:
    stages = f"pipeline.num_stages={p}"
    split = config(tmp_path, "pipeline=zero_bubble_h1", stages, word)
    assert_equal(split, config(tmp_path, "pipeline=sync", stages, word))


@pytest.mark.parametrize("two_chunks", ["zero_bubble_v", "dualpipe_v"])
def test_a_v_of_two_ranks_equals_1f1b_of_four(tmp_path: Path, two_chunks: str) -> None:
    split = config(tmp_path, f"pipeline={two_chunks}", "pipeline.num_stages=2")
    assert_equal(split, config(tmp_path, "pipeline=sync", "pipeline.num_stages=4"))


def test_it_does_not_go_with_activation_checkpointing(tmp_path: Path) -> None:
    words = ("pipeline=zero_bubble_h1", "model.activation_checkpointing=true")
    with pytest.raises(BadInput, match="activation_checkpointing=True: must be false"):
        plan_trial(config(tmp_path, *words))


def test_the_input_half_leaves_the_weights_alone() -> None:
    layer, biased = nn.Linear(3, 4, bias=False), nn.Linear(4, 2)
    x = torch.ones(5, 2, 3, requires_grad=True)
    later = WeightsLater()
    with later:
        output = biased(layer(x)).square().sum()
    output.backward()
    assert x.grad is not None
    assert layer.weight.grad is None
    assert biased.weight.grad is not None, "a layer with a bias is not split"
    [(weight, product)] = later.compute().items()
    biased(layer(x)).square().sum().backward()
    assert weight is layer.weight
    assert torch.equal(product, layer.weight.grad)
    assert not later.compute(), "it lets go of what it had"


def test_every_matrix_of_the_model_but_an_embedding_is_put_off(tmp_path: Path) -> None:
    split = config(tmp_path, "pipeline=zero_bubble_h1", "model.tied_embeddings=false")
    parts = build_parts(split, split["num_updates"])
    executor = build_emulated(split, parts, CPU)
    [stage] = executor._stages
    for _, op in interleave(parts.schedule.operations(0, 1)):
        if op.kind == "W":
            break
        executor._do[op.kind](op)
    [microbatch] = stage._in_flight.values()
    early = microbatch.early
    names = [name for name, g in zip(stage.versions.names, early, strict=True) if g is not None]
    assert all(name.endswith(("norm.weight", "embed_tokens.weight")) for name in names)
    late = microbatch.weights_later.compute()
    assert [leaf in late for leaf in microbatch.leaves] == [gradient is None for gradient in early]
