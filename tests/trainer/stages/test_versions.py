"""Versions: autograd's guard works, memory is what the design counts, wrong reads raise."""

import pytest
import torch
from torch import nn

from tests.support import toy
from tests.support.delayed import ADAMW, PHASES
from trainer.schedules.recipes import pipedream_2bw, sync
from trainer.stages.versions import Versions


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
