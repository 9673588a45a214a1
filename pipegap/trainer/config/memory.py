"""The weights of each stage, the memory that a rank needs for them, and the most that it will have
in use in an update, counted along its operations, before a trial runs."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple, TypeVar

import torch
from torch.optim import Optimizer

from pipegap.trainer.base.build import build, locate
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.models.recipe import Recipe
from pipegap.trainer.optimizers.routing import EXPERTS, MATRICES, Kind, kept_entries, made_in_step
from pipegap.trainer.schedules.operations import Op, Schedule
from pipegap.trainer.schedules.proof import interleave

FP32 = 4
WALKED = 3
"""Batches of each phase whose operations are followed; later ones repeat them."""
KEPT: Mapping[bool, float] = {True: 0.85, False: 1.22}
"""What a forward keeps for its backward, per entry that goes into or comes out of a product with a
matrix, compiled or not. Counted for Llama's layers; mixtures keep a tenth more, a delta net up to
twice as much."""
Number = TypeVar("Number", int, float)


def largest_rank(
    config: Mapping[str, Any],
    schedule: Schedule,
    correction: NoCorrection,
    stages: "Stages",
    states: Sequence[int],
) -> int:
    """Return the bytes of the rank that needs most, in a delayed update; activations aside.

    All stages of an emulated pipeline are on one rank. Each weight has the fp32 master, the leaves
    of its versions, the fp32 sum of gradients, the states of optimizer and correction. In fp32 the
    newest leaf is the master. In a true pipeline a delayed update waits with its gradients while
    the next gradients are summed. Of an optimizer divided among replicas, the replica counts that
    owns most states. A tied weight counts on both of its stages.
    """
    is_true, dtype = config["runner"] != "emulated", getattr(torch, config["dtype"])
    of_stages = [
        num_entries(stage) * _shared(dtype, lag, correction, is_true=is_true) + FP32 * state_entries
        for stage, state_entries, lag in zip(stages, states, schedule.lags, strict=True)
    ]
    return max(by_rank(schedule, of_stages)) if is_true else sum(of_stages)


def by_rank(schedule: Schedule, of_stages: Sequence[Number]) -> list[Number]:
    """Return the sum over each rank's stages, of one replica."""
    ranks = map(schedule.stages, range(schedule.num_ranks))
    return [sum(of_stages[stage] for stage in stages) for stages in ranks]


def loss_bytes(config: Mapping[str, Any], model: Recipe) -> int:
    """Return the bytes at the peak of one microbatch's loss: logits and all that is made of them.

    Compiled, these are the logits and their gradient, else also fp32 copies. A loss that is fused
    with the head (`model.loss_chunk`) makes the logits of one chunk alone, and also holds both
    gradients of the head.
    """
    itemsize = itemsize_of(config)
    rows = config["batch_size"] // (config["pipeline"]["num_microbatches"] * config["num_replicas"])
    tokens, chunk = rows * config["seq_len"], config["model"].get("loss_chunk")
    if chunk is None:
        of_logit = 2 * itemsize if config["compile"] else 3 * FP32
        return tokens * model.vocab_size * of_logit
    # Logits, in fp32 if they are not, their gradient, and where the targets are, twice.
    copies = itemsize + FP32 * (itemsize < FP32) + FP32 + 1 + FP32
    of_logit = 2 * itemsize if config["compile"] else copies
    gradients = model.hidden_size * (FP32 * model.vocab_size + itemsize * tokens)
    return min(tokens, chunk) * model.vocab_size * of_logit + gradients


def _shared(dtype: torch.dtype, lag: int, correction: NoCorrection, *, is_true: bool) -> int:
    """Bytes per parameter whatever the optimizer is."""
    num_leaves = lag + correction.num_leaves_ahead(lag) + (dtype != torch.float32)
    num_gradients = 2 if is_true and lag else 1
    fp32 = 1 + num_gradients + correction.num_buffers(lag)
    return FP32 * fp32 + dtype.itemsize * num_leaves


class Weight(NamedTuple):
    """A weight without its numbers.

    `shape` ends in the two widths of a matrix; earlier sizes count the matrices of a stack.
    """

    kind: Kind
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of entries."""
        return prod(self.shape)

    @property
    def widths(self) -> int:
        """Entries that a token has in the products with all of its matrices, in and out."""
        return prod(self.shape[:-2]) * sum(self.shape[-2:])


Stages = Sequence[Sequence[Weight]]


def weights_of(config_of_model: Any, num_stages: int, seq_len: int) -> list[list[Weight]]:
    """Return the weights of each stage; a tied weight is on both of its stages.

    No memory is used for them.
    """
    return _weights(json.dumps(config_of_model, sort_keys=True), num_stages, seq_len)


@cache
def _weights(node: str, num_stages: int, seq_len: int) -> list[list[Weight]]:
    model: Recipe = build(json.loads(node))
    split = model.split(num_stages, seq_len)
    weights: list[list[Weight]] = []
    for index in range(num_stages):
        with torch.device("meta"):
            stage = model.stage(index, split)
        kinds = model.kinds(stage)
        pairs = stage.named_parameters()
        weights.append([Weight(kinds[name], tuple(weight.shape)) for name, weight in pairs])
    return weights


def states_of(optimizer: Callable[..., Optimizer], stages: Stages) -> list[int]:
    """Return how many fp32 numbers the optimizer keeps for each stage."""
    num_entries_kept = kept_entries(optimizer)
    return [sum(num_entries_kept(*weight) for weight in stage) for stage in stages]


def visited(model: Recipe, stages: Stages) -> dict[Kind, float]:
    """For each kind of product, the share of its weights that one token is multiplied by."""
    experts = sum(w.size for stage in stages for w in stage if w.kind == EXPERTS)
    idle = model.num_parameters - model.num_active_parameters
    return {"matrix": 1.0, EXPERTS: 1 - idle / experts if experts else 1.0}


def widths_per_token(weights: Sequence[Weight], shares: Mapping[Kind, float]) -> float:
    """Return the entries of one token that go into or come out of products with these weights."""
    return sum(w.widths * shares[w.kind] for w in weights if w.kind in MATRICES)


def num_entries(weights: Sequence[Weight]) -> int:
    """Return the number of entries of all these weights."""
    return sum(weight.size for weight in weights)


@dataclass(frozen=True)
class _Costs:
    """Bytes that each stage needs in addition to weights and optimizer states.

    `kept`: activations of one microbatch, from its forward to its backward. `loss`: logits and
    their gradient on the last stage, at the start of a backward. `again`: the activations of the
    layer that a backward recomputes. `gradients`: the gradients of a microbatch, at the end of its
    backward. `update`: temporary tensors of an optimizer step.
    """

    kept: tuple[int, ...]
    again: tuple[int, ...]
    gradients: tuple[int, ...]
    update: tuple[int, ...]
    loss: int


def peak_bytes(config: Mapping[str, Any], num_updates: int) -> int:
    """Return the most bytes that any rank of a validated config has in use in any of its updates.

    Counted are weights, gradients and states (`largest_rank`), what microbatches keep between
    forward and backward, the loss, recomputed layers, what the optimizer makes in a step, and what
    a comparison holds (`diagnostics`). Not counted are the context of the GPU and its libraries
    (about 1 GB), messages between ranks, and holes between blocks of memory.
    """
    model, schedule = build(config["model"]), build(config["pipeline"], num_updates)
    correction = build(config["correction"], num_updates, schedule.lags)
    optimizer = locate(config["optimizer"]["_target_"])
    stages = weights_of(config["model"], schedule.num_stages, config["seq_len"])
    states = states_of(optimizer, stages)
    made_in_steps = [made_in_step(optimizer, stage) for stage in stages]
    is_true, itemsize = config["runner"] != "emulated", itemsize_of(config)
    entries = list(map(num_entries, stages))
    times = 1 if is_true else config["num_replicas"]
    fresh, held_entries = _held(config, schedule, correction, entries, states)
    activation_bytes, recomputed_bytes = _activations(config, model, stages)
    costs = _Costs(
        kept=tuple(times * number for number in activation_bytes),
        again=tuple(recomputed_bytes),
        gradients=tuple(itemsize * number for number in entries),
        update=tuple(
            FP32 * sum(of_stage) for of_stage in zip(held_entries, made_in_steps, strict=True)
        ),
        loss=loss_bytes(config, model),
    )
    waiting = FP32 * (fresh + (0 if is_true else sum(entries) * (times - 1)))
    weights = largest_rank(config, schedule, correction, stages, states)
    return weights + waiting + _beside(schedule, costs, is_true)


def _activations(
    config: Mapping[str, Any], model: Recipe, stages: Stages
) -> tuple[list[int], list[int]]:
    """The bytes that a microbatch keeps on each stage until its backward, logits aside, and those
    that its backward makes again there, in one layer."""
    rows = config["batch_size"] // (config["pipeline"]["num_microbatches"] * config["num_replicas"])
    size = rows * config["seq_len"] * itemsize_of(config)
    shares, share = visited(model, stages), KEPT[bool(config["compile"])]
    whole = [round(size * share * widths_per_token(stage, shares)) for stage in stages]
    if not model.activation_checkpointing:
        return whole, [0] * len(stages)
    layers = list(map(len, model.split(len(stages), config["seq_len"])))
    inputs = [size * model.hidden_size * number for number in layers]
    return inputs, [of // max(1, number) for of, number in zip(whole, layers, strict=True)]


def itemsize_of(config: Mapping[str, Any]) -> int:
    """Return the bytes of an entry of the leaves."""
    dtype: torch.dtype = getattr(torch, config["dtype"])
    return dtype.itemsize


def _held(
    config: Mapping[str, Any],
    schedule: Schedule,
    correction: NoCorrection,
    entries: Sequence[int],
    states: Sequence[int],
) -> tuple[int, list[int]]:
    """The fp32 numbers of a rank's fresh updates, and those beside the update of each stage.

    An update that a correction needs is beside. With `diagnostics` the fresh updates are there in
    the whole batch that is compared, and beside are the update and a copy of the rank's weights
    before it; beside a fresh update itself is a copy of the optimizer's state.
    """
    if config["diagnostics"] is None:
        return 0, [correction.needs_update * number for number in entries]
    is_true = config["runner"] != "emulated"
    fresh = max(by_rank(schedule, entries)) if is_true else sum(entries)
    pairs = zip(states, entries, strict=True)
    return fresh, [max(num_kept, fresh + number) for num_kept, number in pairs]


@cache
def _beside(schedule: Schedule, costs: _Costs, is_true: bool) -> int:
    """The most bytes in use on one rank beside weights, gradients and states."""
    most, ends = 0, schedule.num_stages - 1
    for first, last in pairwise(schedule.phases):
        operations = schedule.operations(first, min(last, first + WALKED))
        # Those of each process.
        lists = operations if is_true else [[op for _, op in interleave(operations)]]
        most = max(most, *(level for ops in lists for level in _levels(ops, costs, ends)))
    return most


def _levels(ops: Sequence[Op], costs: _Costs, last: int) -> Iterator[int]:
    """Yields the bytes in use during each operation of one process."""
    living = 0
    for op in ops:
        if op.kind == "F":
            living += costs.kept[op.stage]
        if op.kind in ("F", "B", "I"):
            yield living + max(costs.again[op.stage], costs.loss * (op.stage == last))
        if op.kind in ("B", "I"):
            living -= costs.kept[op.stage]
        yield living + costs.update[op.stage] * (op.kind == "U")
        yield living + costs.gradients[op.stage] * (op.kind in ("B", "W"))
