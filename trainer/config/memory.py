"""The weights of each stage, and the memory that a rank needs for them, before a trial runs."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple, TypeVar

import torch

from trainer.base.build import build, locate
from trainer.corrections.none import NoCorrection
from trainer.models.recipe import Recipe
from trainer.optimizers.routing import Kind, kept_entries
from trainer.optimizers.sharded import owners
from trainer.schedules.operations import Schedule

FP32 = 4
Number = TypeVar("Number", int, float)


def largest_rank(config: Mapping[str, Any], schedule: Schedule, correction: NoCorrection) -> int:
    """Return the bytes of the rank that needs most, in a delayed update; activations aside.

    All stages of an emulated pipeline are on one rank. Each weight has the fp32 master, the leaves
    of its versions, the fp32 sum of gradients, the states of optimizer and correction. In fp32 the
    newest leaf is the master. In a true pipeline a delayed update waits with its gradients while
    the next gradients are summed. Of an optimizer divided among replicas, the replica counts that
    owns most states. A tied weight counts on both of its stages.
    """
    weights = weights_of(config["model"], schedule.num_stages, config["seq_len"])
    kept = kept_entries(locate(config["optimizer"]["_target_"]))
    is_true, dtype = config["runner"] != "emulated", getattr(torch, config["dtype"])
    num_owners = config["num_replicas"] if config["shard_optimizer"] else 1
    of_stages = [
        num_entries(stage) * _shared(dtype, lag, correction, is_true=is_true)
        + FP32 * _largest_share([kept(w.kind, w.shape) for w in stage], num_owners)
        for stage, lag in zip(weights, schedule.lags, strict=True)
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
    itemsize = getattr(torch, config["dtype"]).itemsize
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


def _largest_share(entries: Sequence[int], num_owners: int) -> int:
    """Return the most entries of states that one replica owns."""
    loads = [0] * num_owners
    for number, owner in zip(entries, owners(entries, num_owners), strict=True):
        loads[owner] += number
    return max(loads)


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
        named = stage.named_parameters()
        weights.append([Weight(kinds[name], tuple(weight.shape)) for name, weight in named])
    return weights


def num_entries(weights: Sequence[Weight]) -> int:
    """Return the number of entries of all these weights."""
    return sum(weight.size for weight in weights)
