"""Versions: autograd's guard works, memory is what the design counts, wrong reads raise; a stage
reads the leaves that are bound on it."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from pipegap.trainer.models.decoder import Decoder
from pipegap.trainer.models.loss import cross_entropy
from pipegap.trainer.schedules.recipes import pipedream_2bw, sync
from pipegap.trainer.stages.versions import Versions
from tests.support import toy
from tests.support.delayed import ADAMW, PHASES
from tests.support.hybrid import HYBRID
from tests.support.llama import SMALL, TOKENS
from tests.support.whole import whole


def storages(versions: Versions) -> int:
    leaves = [leaf for ring in versions._rings for leaf in ring]
    return len({t.data_ptr() for t in [*versions.master, *leaves]})


@pytest.mark.parametrize(
    ("lag", "dtype", "sets"),
    [
        (0, torch.float32, 1),
        (1, torch.float32, 2),
        (3, torch.float32, 4),
        (0, torch.bfloat16, 2),
        (1, torch.bfloat16, 3),
    ],
)
def test_a_delay_costs_one_more_set_of_leaves(lag: int, dtype: torch.dtype, sets: int) -> None:
    module = nn.Linear(3, 3)
    versions = Versions(module, [lag, lag], dtype)
    for _ in range(5):
        assert storages(versions) == 2 * sets
        versions.open()
        versions.close(versions.master)


def test_a_version_is_there_from_its_update_until_it_is_overwritten() -> None:
    versions = Versions(nn.Linear(2, 2), [1, 1], torch.float32)
    versions.bind([0, 0], 0)
    with pytest.raises(LookupError, match="version 1 is not there"):
        versions.bind([1, 1], 0)
    for _ in range(2):
        versions.open()
        versions.close(versions.master)
    versions.bind([1, 2], 0)
    with pytest.raises(LookupError, match="version 0 is not there"):
        versions.bind([0, 0], 0)


def test_overwriting_a_version_in_use_raises() -> None:
    module = nn.Linear(2, 2)
    versions = Versions(module, [1, 1], torch.float32)
    versions.bind([0, 0], 0)
    output = module(torch.ones(1, 2, requires_grad=True)).sum()
    for _ in range(2):
        versions.open()
        versions.close(versions.master)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.backward()


def test_a_tied_weight_is_bound_in_both_places() -> None:
    module = nn.ModuleDict({"a": nn.Embedding(3, 2), "b": nn.Linear(2, 3, bias=False)})
    module["b"].weight = module["a"].weight
    versions = Versions(module, [1], torch.float32)
    [leaf] = versions.bind([0], 0)
    assert module["a"].weight is leaf is module["b"].weight


def test_a_schedule_that_reads_too_far_back_cannot_run() -> None:
    """The lists say one version behind, the stages hold only the newest."""
    schedule = pipedream_2bw(4, num_stages=2, num_microbatches=1, **PHASES)
    narrow = sync(4, num_stages=2, num_microbatches=1)
    executor = toy.emulated(narrow, ADAMW)
    executor._schedule = schedule
    with pytest.raises(LookupError, match="version 0 is not there"):
        executor.run(0, 4, lambda update: None)


def test_nothing_stays_in_flight() -> None:
    schedule = pipedream_2bw(6, num_stages=4, num_microbatches=3, **PHASES)
    executor = toy.emulated(schedule, ADAMW)
    toy.run(executor, (0, 6))
    assert not executor._sent
    assert not executor._gradients
    assert not executor._losses
    for stage in executor._stages:
        assert not any((stage._in_flight, stage._read, stage._sums._of_replicas))


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
