"""The work of one update, counted before the update runs: FLOPs and bytes, by stage and part.

Products of matrices and attention are limited by FLOPs, all other kernels by the bytes that they
read and write. How fast a device does either is not known here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import torch

from pipegap.trainer.base.build import locate
from pipegap.trainer.config.memory import FP32, Weight, by_rank, num_entries, weights_of
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.models.recipe import Recipe
from pipegap.trainer.models.split import Split
from pipegap.trainer.optimizers.routing import EXPERTS, MATRICES, buffers
from pipegap.trainer.schedules.operations import Schedule

Config = Mapping[str, Any]

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


class PartWork(NamedTuple):
    """FLOPs of attention, FLOPs of all other products, bytes that other kernels read and write."""

    attention: float = 0.0
    products: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True)
class StageWork:
    """What a stage does in one process for one update, by the name of each part.

    `passes` go forward and backward through all microbatches, `update` changes the weights.
    `launches` counts layers, each once per microbatch: the host has work for every one.
    """

    passes: Mapping[str, PartWork]
    update: Mapping[str, PartWork]
    launches: int


class Traffic(NamedTuple):
    """Bytes that a rank sends: `message` are the hidden states of one microbatch, `sums` all that
    is summed over replicas for one update."""

    message: float
    sums: float


def step(
    config: Config, model: Recipe, schedule: Schedule, correction: NoCorrection
) -> list[StageWork]:
    """Return the work of each stage.

    A process of a true pipeline has one replica's share of the batch, an emulated trial all of it.
    Left out: what matrix optimizers multiply (Muon, SOAP), and looking up embeddings.
    """
    weights = weights_of(config["model"], schedule.num_stages, config["seq_len"])
    split = model.split(schedule.num_stages, config["seq_len"])
    passes = _passes(config, model, split, weights)
    _, num_backwards = _share(config)
    return [
        StageWork(parts, _update(config, stage, lag, correction), len(layers) * num_backwards)
        for parts, stage, lag, layers in zip(passes, weights, schedule.lags, split, strict=True)
    ]


def traffic(config: Config, model: Recipe, schedule: Schedule) -> Traffic:
    """Return what the rank that sends most sends in a true pipeline; 0 bytes in an emulated one."""
    if config["runner"] == "emulated":
        return Traffic(0.0, 0.0)
    weights = weights_of(config["model"], schedule.num_stages, config["seq_len"])
    largest = max(by_rank(schedule, [num_entries(stage) for stage in weights]))
    tokens = _share(config)[0] / schedule.num_microbatches
    others = (config["num_replicas"] - 1) / config["num_replicas"]
    return Traffic(
        message=tokens * model.hidden_size * _itemsize(config) * (schedule.num_ranks > 1),
        sums=2 * others * FP32 * largest,  # each entry goes round a ring of replicas twice
    )


def _share(config: Config) -> tuple[float, int]:
    """Return the tokens of an update that one process sees, and its backwards of a stage."""
    replicas, num_microbatches = config["num_replicas"], config["pipeline"]["num_microbatches"]
    num_processes = 1 if config["runner"] == "emulated" else replicas
    tokens = config["batch_size"] * config["seq_len"] / num_processes
    return tokens, num_microbatches * replicas // num_processes


def _passes(
    config: Config, model: Recipe, split: Split, weights: Sequence[Sequence[Weight]]
) -> list[dict[str, PartWork]]:
    """Forward and backward of all microbatches, by stage."""
    num_layers, visited = sum(map(len, split)), _visited(model, weights)
    (tokens, num_backwards), itemsize = _share(config), _itemsize(config)
    is_compiled, chunk = bool(config["compile"]), config["model"].get("loss_chunk")
    mixing = _mixing(model, weights, visited, config["seq_len"])
    bytes_per_sum = itemsize + 2 * FP32  # a gradient is read, its fp32 sum is read and written
    # A forward more, which is one product of three, and two of seven in attention.
    again, in_attention = (4 / 3, 9 / 7) if model.activation_checkpointing else (1.0, 1.0)
    passes = []
    for stage, layers in zip(weights, split, strict=True):
        share = tokens * len(layers) / num_layers
        entries = sum(w.widths * visited[w.kind] for w in stage if w.kind in MATRICES)
        passes.append(
            {
                "layers": PartWork(
                    products=again * tokens * _flops(stage, visited),
                    bytes=again * tokens * TOUCHES[is_compiled] * entries * itemsize,
                ),
                "attention": PartWork(
                    attention=in_attention * share * mixing.attention,
                    products=again * share * mixing.products,
                ),
                "gradients": PartWork(bytes=num_entries(stage) * num_backwards * bytes_per_sum),
            }
        )
    head = model.hidden_size * model.vocab_size
    of_logit = LOSS_TOUCHES * itemsize + LOSS_COPIES[is_compiled]
    # A loss that is fused with the head adds to the head's gradient after every chunk of tokens.
    num_sums = 0 if chunk is None else num_backwards * ceil(tokens / num_backwards / chunk)
    loss = of_logit * model.vocab_size * tokens + num_sums * head * bytes_per_sum
    passes[-1] |= {"head": PartWork(products=6 * head * tokens), "loss": PartWork(bytes=loss)}
    return passes


def _mixing(
    model: Recipe, weights: Sequence[Sequence[Weight]], visited: Mapping[str, float], seq_len: int
) -> PartWork:
    """Return the FLOPs per token of the whole model that mix tokens.

    Those of attention grow with the length. Those of linear mixers are products without a weight.
    """
    at_any_length = model.flops_per_token(0)
    growing = model.flops_per_token(seq_len) - at_any_length
    every = [weight for stage in weights for weight in stage]
    vectors = 6 * sum(weight.size for weight in every if weight.kind == "vector")
    head = 6 * model.hidden_size * model.vocab_size
    linear = at_any_length - _flops(every, visited) - vectors - head
    return PartWork(attention=CAUSAL * SCORED_AGAIN * growing, products=max(0.0, linear))


def _update(
    config: Config, weights: Sequence[Weight], lag: int, correction: NoCorrection
) -> dict[str, PartWork]:
    """Return the bytes of an update, with division, norm and clip of gradients as optimizer."""
    kept = buffers(locate(config["optimizer"]["_target_"]))
    size, itemsize = num_entries(weights), _itemsize(config)
    of_gradients = 2 + 1 + 2  # read and written, read, read and written
    optimizer = sum((3 + 2 * kept(w.kind) + of_gradients) * w.size for w in weights)
    leaves = (FP32 + itemsize) * (itemsize < FP32 or lag > 0) * size
    ahead = (FP32 + itemsize) * bool(correction.num_leaves_ahead(lag)) * size
    # A copy of W(t) and a difference make the update; then the earlier one is looked at, subtracted
    # from, multiplied and added to the weights (test_passes.py counts as many).
    of_correction = 5 * correction.needs_update + 9 * (correction.num_buffers(lag) > 0)
    return {
        "optimizer": PartWork(bytes=FP32 * optimizer),
        "versions": PartWork(bytes=leaves + ahead),
        "correction": PartWork(bytes=FP32 * of_correction * size),
    }


def _visited(model: Recipe, weights: Sequence[Sequence[Weight]]) -> dict[str, float]:
    """For each kind of product, the share of its weights that one token is multiplied by."""
    experts = sum(w.size for stage in weights for w in stage if w.kind == EXPERTS)
    idle = model.num_parameters - model.num_active_parameters
    return {"matrix": 1.0, EXPERTS: 1 - idle / experts if experts else 1.0}


def _flops(weights: Sequence[Weight], visited: Mapping[str, float]) -> float:
    """FLOPs per token of the products with these weights, forward and backward."""
    return sum(6 * w.size * visited[w.kind] for w in weights if w.kind in MATRICES)


def _itemsize(config: Config) -> int:
    dtype: torch.dtype = getattr(torch, config["dtype"])
    return dtype.itemsize
