"""The weights of each stage, and the memory that a rank needs for them, before a trial runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch

from trainer.base.build import build, locate
from trainer.corrections.none import NoCorrection
from trainer.models.recipe import Recipe
from trainer.optimizers.routing import EXPERTS, Kind, buffers
from trainer.optimizers.sharded import owners
from trainer.schedules.operations import Schedule

FP32 = 4
PRODUCTS: tuple[Kind, ...] = ("matrix", EXPERTS)
"""Kinds of weights that tokens are multiplied by; the head aside, which may be an embedding."""


def largest_rank(config: Mapping[str, Any], schedule: Schedule, correction: NoCorrection) -> int:
    """Bytes of the rank that needs most, in the middle of a delayed update; activations aside.

    All stages are on one rank where the pipeline is emulated. Per weight: the fp32 master, the
    leaves of its versions, the fp32 sum of gradients, the states of optimizer and correction. A
    divided optimizer counts with the states of the replica that owns most of them, and with nothing
    else divided. In fp32 the newest leaf is the master. In a true pipeline a delayed update waits
    with its gradients while the next ones are summed. Tied weights count as the others of their
    stage.
    """
    weights = weights_of(config["model"], schedule.num_stages, config["seq_len"])
    kept = buffers(locate(config["optimizer"]["_target_"]))
    is_true, dtype = config["runner"] != "emulated", getattr(torch, config["dtype"])
    num_owners = config["num_replicas"] if config["shard_optimizer"] else 1
    of_stages = [
        sum(weight.size for weight in of_stage) * _shared(dtype, lag, correction, is_true=is_true)
        + FP32 * _largest_share([w.size * kept(w.kind) for w in of_stage], num_owners)
        for of_stage, lag in zip(weights, schedule.lags, strict=True)
    ]
    if not is_true:
        return sum(of_stages)
    ranks = range(schedule.num_ranks)
    return max(sum(of_stages[stage] for stage in schedule.stages(rank)) for rank in ranks)


def loss_bytes(config: Mapping[str, Any], model: Recipe) -> int:
    """Bytes at the peak of the loss of one microbatch, logits and all that is made of them.

    Compiled: logits and their gradient. Else fp32 ones too, which a loss that is fused with the
    head (`model.loss_chunk`) makes of a chunk alone; that also holds both gradients of the head.
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
    """Entries of the states of the weights that one replica owns, of the one that has most."""
    loads = [0] * num_owners
    for number, owner in zip(entries, owners(entries, num_owners), strict=True):
        loads[owner] += number
    return max(loads)


class Weight(NamedTuple):
    """`shape` ends in the two widths of a matrix; those before count the matrices of a stack."""

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
    """The weights of each stage; a tied one is on both of its stages."""
    return _weights(json.dumps(config_of_model, sort_keys=True), num_stages, seq_len)


@cache
def _weights(node: str, num_stages: int, seq_len: int) -> list[list[Weight]]:
    model: Recipe = build(json.loads(node))
    split = model.split(num_stages, seq_len)
    found: list[list[Weight]] = []
    for index in range(num_stages):
        with torch.device("meta"):
            stage = model.stage(index, split)
        kinds = model.kinds(stage)
        named = stage.named_parameters()
        found.append([Weight(kinds[name], tuple(weight.shape)) for name, weight in named])
    return found
