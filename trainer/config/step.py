"""The work of one update, counted before it runs: FLOPs and bytes, stage by stage, part by part.

Products of matrices and attention are limited by FLOPs, all other kernels by the bytes that they
read and write. How fast a device does either is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import torch

from trainer.base.build import locate
from trainer.config.memory import FP32, PRODUCTS, Weight, weights_of
from trainer.corrections.none import NoCorrection
from trainer.models.recipe import Recipe
from trainer.models.split import Split
from trainer.optimizers.routing import EXPERTS, buffers
from trainer.schedules.operations import Schedule

CAUSAL = 1 / 2
"""The share of all scores that a causal kernel makes."""
SCORED_AGAIN = 7 / 6
"""Attention kernels make the scores again in their backward: seven products in place of six."""
TOUCHES: Mapping[bool, float] = {True: 4.2, False: 19.0}
"""How often kernels beside the products read or write each entry that goes into or comes out of a
product, forward and backward together, compiled or not: norms, rotations, activations, residuals.
Fitted to one trial, 135m on an H100 (bench/README.md)."""
LOSS_TOUCHES = 4
"""How often the loss reads or writes a logit or its gradient, in the dtype of the leaves."""
LOSS_COPIES: Mapping[bool, int] = {True: 0, False: 32}
"""Bytes per logit of its fp32 copies, compiled or not."""


class Work(NamedTuple):
    """FLOPs of attention, FLOPs of all other products, and bytes that other kernels read and
    write.
    """

    attention: float = 0.0
    products: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True)
class StageWork:
    """What a stage does in one process for one update, by the name of each part.

    `passes` go forward and backward through all microbatches, `update` changes the weights.
    `launches` counts layers, each once per microbatch: the host has work for every one.
    """

    passes: Mapping[str, Work]
    update: Mapping[str, Work]
    launches: int


class Traffic(NamedTuple):
    """Bytes that a rank sends: `message` are the hidden states of one microbatch, `sums` all that
    is summed over replicas for one update.
    """

    message: float
    sums: float


def step(
    config: Mapping[str, Any], model: Recipe, schedule: Schedule, correction: NoCorrection
) -> list[StageWork]:
    """The work of each stage. A process of a true pipeline has one replica's share of the batch, an
    emulated trial all of it.

    Left out: what matrix optimizers multiply (Muon, SOAP), and looking up embeddings.
    """
    weights = weights_of(config["model"], schedule.num_stages, config["seq_len"])
    split = model.split(schedule.num_stages, config["seq_len"])
    passes = _passes(config, model, split, weights)
    updates = [
        _update(config, of_stage, lag, correction)
        for of_stage, lag in zip(weights, schedule.lags, strict=True)
    ]
    launches = [len(layers) * _num_backwards(config) for layers in split]
    return [StageWork(*parts) for parts in zip(passes, updates, launches, strict=True)]


def traffic(config: Mapping[str, Any], model: Recipe, schedule: Schedule) -> Traffic:
    """What the rank that sends most sends in a true pipeline; 0 bytes in an emulated one."""
    if config["runner"] == "emulated":
        return Traffic(0.0, 0.0)
    weights = weights_of(config["model"], schedule.num_stages, config["seq_len"])
    largest = max(
        sum(_size(weights[stage]) for stage in schedule.stages(rank))
        for rank in range(schedule.num_ranks)
    )
    tokens = _tokens(config) / schedule.num_microbatches
    others = (config["num_replicas"] - 1) / config["num_replicas"]
    return Traffic(
        message=tokens * model.hidden_size * _itemsize(config) * (schedule.num_ranks > 1),
        sums=2 * others * FP32 * largest,  # each entry goes round a ring of replicas twice
    )


def _passes(
    config: Mapping[str, Any],
    model: Recipe,
    split: Split,
    weights: Sequence[Sequence[Weight]],
) -> list[dict[str, Work]]:
    """Forward and backward of all microbatches, by stage."""
    num_layers, visited = sum(map(len, split)), _visited(model, weights)
    tokens, itemsize, is_compiled = _tokens(config), _itemsize(config), config["compile"]
    mixing = _mixing(model, weights, visited, config["seq_len"])
    # A forward more, which is one product of three, and two of seven in attention.
    again, in_attention = (4 / 3, 9 / 7) if model.activation_checkpointing else (1.0, 1.0)
    found = []
    for of_stage, layers in zip(weights, split, strict=True):
        share = tokens * len(layers) / num_layers
        entries = sum(w.widths * visited[w.kind] for w in of_stage if w.kind in PRODUCTS)
        summed = _size(of_stage) * _num_backwards(config) * (itemsize + 2 * FP32)
        found.append(
            {
                "layers": Work(
                    products=again * tokens * _flops(of_stage, visited),
                    bytes=again * tokens * TOUCHES[is_compiled] * entries * itemsize,
                ),
                "attention": Work(
                    attention=in_attention * share * mixing.attention,
                    products=again * share * mixing.products,
                ),
                "gradients": Work(bytes=summed),
            }
        )
    logits = model.vocab_size * tokens
    of_logit = LOSS_TOUCHES * itemsize + LOSS_COPIES[is_compiled]
    head = model.hidden_size * model.vocab_size
    found[-1]["head"] = Work(products=6 * head * tokens)
    summed = _num_sums(config) * head * (itemsize + 2 * FP32)
    found[-1]["loss"] = Work(bytes=of_logit * logits + summed)
    return found


def _mixing(
    model: Recipe,
    weights: Sequence[Sequence[Weight]],
    visited: Mapping[str, float],
    seq_len: int,
) -> Work:
    """FLOPs per token of the whole model that mix tokens: of attention, which are those that grow
    with the length, and of linear mixers, which are products without a weight.
    """
    at_any_length = model.flops_per_token(0)
    growing = model.flops_per_token(seq_len) - at_any_length
    every = [weight for of_stage in weights for weight in of_stage]
    vectors = 6 * sum(weight.size for weight in every if weight.kind == "vector")
    head = 6 * model.hidden_size * model.vocab_size
    linear = at_any_length - _flops(every, visited) - vectors - head
    return Work(attention=CAUSAL * SCORED_AGAIN * growing, products=max(0.0, linear))


def _update(
    config: Mapping[str, Any], weights: Sequence[Weight], lag: int, correction: NoCorrection
) -> dict[str, Work]:
    """The bytes of an update: division, norm and clip of gradients count as the optimizer's."""
    kept = buffers(locate(config["optimizer"]["_target_"]))
    size, itemsize = _size(weights), _itemsize(config)
    of_gradients = 2 + 1 + 2  # read and written, read, read and written
    optimizer = sum((3 + 2 * kept(w.kind) + of_gradients) * w.size for w in weights)
    leaves = (FP32 + itemsize) * (itemsize < FP32 or lag > 0) * size
    ahead = (FP32 + itemsize) * bool(correction.num_leaves_ahead(lag)) * size
    # A copy of W(t) and a difference make the update; then the earlier one is looked at, subtracted
    # from, multiplied and added to the weights (`bench.passes` counts as many).
    of_correction = 5 * correction.needs_update + 9 * (correction.num_buffers(lag) > 0)
    return {
        "optimizer": Work(bytes=FP32 * optimizer),
        "versions": Work(bytes=leaves + ahead),
        "correction": Work(bytes=FP32 * of_correction * size),
    }


def _visited(model: Recipe, weights: Sequence[Sequence[Weight]]) -> dict[str, float]:
    """For each kind of product, the share of its weights that one token is multiplied by."""
    experts = sum(w.size for of_stage in weights for w in of_stage if w.kind == EXPERTS)
    idle = model.num_parameters - model.num_active_parameters
    return {"matrix": 1.0, EXPERTS: 1 - idle / experts if experts else 1.0}


def _flops(weights: Sequence[Weight], visited: Mapping[str, float]) -> float:
    """FLOPs per token of the products with these weights, forward and backward."""
    return sum(6 * w.size * visited[w.kind] for w in weights if w.kind in PRODUCTS)


def _tokens(config: Mapping[str, Any]) -> float:
    """Tokens of an update that one process sees."""
    return config["batch_size"] * config["seq_len"] / _num_others(config)


def _num_backwards(config: Mapping[str, Any]) -> int:
    """Backwards of a stage in one process for an update."""
    times: int = config["pipeline"]["num_microbatches"] * config["num_replicas"]
    return times // _num_others(config)


def _num_sums(config: Mapping[str, Any]) -> int:
    """How often an update adds to the head's gradient within a loss that is fused with it."""
    chunk, num_backwards = config["model"].get("loss_chunk"), _num_backwards(config)
    return 0 if chunk is None else num_backwards * ceil(_tokens(config) / num_backwards / chunk)


def _num_others(config: Mapping[str, Any]) -> int:
    """Into how many processes the replicas divide a batch."""
    replicas: int = config["num_replicas"]
    return 1 if config["runner"] == "emulated" else replicas


def _itemsize(config: Mapping[str, Any]) -> int:
    dtype: torch.dtype = getattr(torch, config["dtype"])
    return dtype.itemsize


def _size(weights: Sequence[Weight]) -> int:
    return sum(weight.size for weight in weights)
