"""Versions: autograd's guard works, memory is what the design counts, wrong reads raise; a stage
reads the leaves that are bound on it."""

import operator
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipegap.trainer.base import flat
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.models.decoder import Decoder
from pipegap.trainer.models.layers import cross_entropy
from pipegap.trainer.optimizers.routing import Kind
from pipegap.trainer.parts import build_emulated, build_parts
from pipegap.trainer.schedules.proof import interleave
from pipegap.trainer.schedules.recipes import pipedream_2bw, sync
from pipegap.trainer.stages.backward import Sums, WeightsLater
from pipegap.trainer.stages.in_parts import correction_in_parts
from pipegap.trainer.stages.probe import Probe
from pipegap.trainer.stages.update import dry_update, step
from pipegap.trainer.stages.versions import Versions
from tests.support import gangs, small_sweep, toy
from tests.support.delayed import ADAMW, PHASES
from tests.support.every_correction import NAMES, maker, variants
from tests.support.live_memory import LiveMemory
from tests.support.models import HYBRID, SMALL, TOKENS, whole


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


# A backward in halves gives the whole one's numbers, to the last bit, and keeps less for later.

CPU = torch.device("cpu")
SHAPE = ("model.num_layers=4", "pipeline.num_microbatches=4", "batch_size=8", "num_updates=4")


def config(folder: Path, *words: str) -> dict[str, Any]:
    return small_sweep.config(folder, *SHAPE, "correction=none", *words)


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


# Gradients in bf16 are added up in fp32; a dry update and a probe hold few sets of tensors.

SHAPES = [(3, 5), (7,), (2, 2, 2)] * 7
DTYPES = [torch.bfloat16, torch.float32, torch.bfloat16] * 7


@pytest.mark.parametrize("largest", [1, 40, flat.LARGEST])
def test_the_sum_is_that_of_the_numbers_in_fp32(
    monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    monkeypatch.setattr(flat, "LARGEST", largest)
    pieces = list(flat.pieces([torch.empty(shape) for shape in SHAPES]))
    assert [tensor.shape for piece in pieces for tensor in piece] == [*map(torch.Size, SHAPES)]
    assert all(len(piece) == 1 or sum(map(torch.numel, piece)) <= largest for piece in pieces)
    generator = torch.Generator().manual_seed(0)
    batches = [
        [torch.randn(s, generator=generator).to(d) for s, d in zip(SHAPES, DTYPES, strict=True)]
        for _ in range(4)
    ]
    sums = Sums(torch.float32)
    every = [[tensor.float().clone() for tensor in batch] for batch in batches]
    for batch in batches:
        sums.add(0, batch)
    for i, of_weight in enumerate(sums.take()):
        wide = [batch[i] for batch in every]
        assert torch.equal(of_weight, wide[0] + wide[1] + wide[2] + wide[3])


def test_gradients_in_the_masters_dtype_become_the_sum() -> None:
    gradients, sums = [torch.ones(shape) for shape in SHAPES], Sums(torch.float32)
    sums.add(0, gradients)
    assert all(map(operator.is_, sums.take(), gradients))


def test_replicas_are_added_up_in_their_order() -> None:
    sums, numbers = Sums(torch.float32), {2: 1.0, 1: 2.0**-24, 0: 2.0**-24}
    for replica, number in numbers.items():
        sums.add(replica, [torch.full(shape, number) for shape in SHAPES])
    one_more = 1 + 2.0**-23  # after the 1 a small one is rounded away
    assert all((of_weight == one_more).all() for of_weight in sums.take())


NUM, SHAPE_OF_SUMS = 16, (64, 256)
SETS = 4 * NUM * 64 * 256
"""Bytes of one fp32 tensor per weight."""


def tensors() -> list[Tensor]:
    return [torch.ones(SHAPE_OF_SUMS) for _ in range(NUM)]


def stepped() -> tuple[torch.optim.Optimizer, Sequence[nn.Parameter]]:
    """An optimizer that has its states."""
    weights = [nn.Parameter(weight, requires_grad=False) for weight in tensors()]
    optimizer = torch.optim.AdamW(weights, foreach=False, fused=True)
    step(optimizer, weights, tensors())
    return optimizer, weights


def test_it_copies_the_states_and_the_weights_once() -> None:
    """A copy of both moments of Adam, and of the weights, which becomes their change."""
    optimizer, weights = stepped()
    gradients = tensors()
    with LiveMemory() as memory:
        dry_update(optimizer, weights, gradients)
    assert memory.peak < (2 + 1 + 0.2) * SETS


def test_a_probe_keeps_the_weights_before_the_update_alone() -> None:
    probe = Probe(tensors())
    weights, update = tensors(), tensors()
    with LiveMemory() as memory:
        probe.before(weights)
        probe.stepped(update)
        probe.applied(weights)
    assert memory.peak < (1 + 0.2) * SETS


# A correction does to each matrix of a stack what it does to that matrix by itself.

T, SHAPE_OF_CORRECTION_IN_PARTS = 8, (3, 4, 16)
KINDS: list[Kind] = ["vector", "experts", "balance"]
SHAPES_OF_CORRECTION_IN_PARTS = [
    torch.Size(shape) for shape in ((5,), SHAPE_OF_CORRECTION_IN_PARTS, (3,))
]
LAGS = [2, 1, 1]


def drawn(t: int, what: int) -> list[Tensor]:
    """One tensor per weight; one matrix of the stack gets no token, so its update is zero."""
    generator = torch.Generator().manual_seed(100 * t + what)
    vector, stack, bias = (
        torch.randn(shape, generator=generator) for shape in SHAPES_OF_CORRECTION_IN_PARTS
    )
    stack[1] *= t % 3 != 1
    return [vector, stack, bias]


def apart(tensors: list[Tensor]) -> list[Tensor]:
    vector, stack, _ = tensors
    return [vector, *(matrix.clone() for matrix in stack.unbind())]


def together(tensors: list[Tensor]) -> list[Tensor]:
    return tensors


def train(
    correction: NoCorrection, layout: Any, weights: list[Tensor], updates: range = range(T)
) -> list[Tensor]:
    """What the correction makes of gradients, of weights and of what is read ahead."""
    seen: list[Tensor] = []
    lags = [LAGS[0], *[1] * (len(weights) - 1)]
    for t in updates:
        delays = [min(t, lag) for lag in lags]
        gradients, update = layout(drawn(t, 1)), layout(drawn(t, 2))
        correction.gradient(gradients, weights, delays)
        torch._foreach_sub_(weights, update)
        correction.apply(weights, update, delays)
        ahead = correction.ahead(weights, update)
        correction.look_ahead(weights, t, 1.0)
        ahead = [*ahead, *correction.evaluated(weights)]
        seen += [tensor.clone() for tensors in (gradients, weights, ahead) for tensor in tensors]
    return seen


def stacked(node: Mapping[str, Any]) -> NoCorrection:
    return correction_in_parts(partial(maker(node), T), LAGS, KINDS, SHAPES_OF_CORRECTION_IN_PARTS)


def flat_of_correction_in_parts(seen: list[Tensor]) -> list[Tensor]:
    """Those of the vector and of each matrix, without the biases."""
    threes = (seen[i : i + 3] for i in range(0, len(seen), 3))
    return [tensor for three in threes for tensor in apart(three)]


@pytest.mark.parametrize("name", NAMES)
def test_a_stack_is_corrected_matrix_by_matrix(name: str) -> None:
    for node in variants(name):
        whole, plain = stacked(node), maker(node)(T, [2, 1, 1, 1])
        assert whole.needs_update == plain.needs_update
        assert whole.reads_ahead == plain.reads_ahead
        seen = train(whole, together, drawn(0, 0))
        expected = train(plain, apart, apart(drawn(0, 0)))
        assert all(map(torch.equal, flat_of_correction_in_parts(seen), expected)), node
        biases = drawn(0, 0)[2] - sum(drawn(t, 2)[2] for t in range(T))
        torch.testing.assert_close(seen[-1], biases)  # a bias is no business of a correction


@pytest.mark.parametrize("name", NAMES)
def test_it_keeps_its_state_by_weight(name: str) -> None:
    """A tensor of a stack's state has one part per matrix, and the state can be taken back."""
    for node in variants(name):
        saved, other = stacked(node), stacked(node)
        train(saved, together, drawn(0, 0), range(4))
        vector, stack, bias = deepcopy(saved.state())
        assert bias == {}
        assert all(len(tensor) == SHAPE_OF_CORRECTION_IN_PARTS[0] for tensor in stack.values())
        other.restore([dict(vector), dict(stack), {}])
        after = [train(made, together, drawn(9, 9), range(4, T)) for made in (saved, other)]
        assert all(map(torch.equal, *after))
