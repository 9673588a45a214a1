"""The memory that a rank needs for weights, gradients and states, known before a trial runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from trainer.base.build import locate
from trainer.config.weights import weights_of
from trainer.corrections.none import NoCorrection
from trainer.models.recipe import Recipe
from trainer.optimizers.routing import buffers
from trainer.schedules.operations import Schedule

FP32 = 4


def largest_rank(config: Mapping[str, Any], schedule: Schedule, correction: NoCorrection) -> int:
    """Bytes of the rank that needs most, in the middle of a delayed update; activations aside.

    All stages are on one rank where the pipeline is emulated. Per weight: the fp32 master, the
    leaves of its versions, the fp32 sum of gradients, the states of optimizer and correction. In
    fp32 the newest leaf is the master. In a true pipeline a delayed update waits with its gradients
    while the next ones are summed. Tied weights count as the others of their stage.
    """
    weights = weights_of(config["model"], schedule.num_stages, config["seq_len"])
    kept = buffers(locate(config["optimizer"]["_target_"]))
    is_true, dtype = config["runner"] != "emulated", getattr(torch, config["dtype"])
    of_stages = [
        sum(weight.size * (shared + FP32 * kept(weight.kind)) for weight in of_stage)
        for of_stage, lag in zip(weights, schedule.lags, strict=True)
        for shared in [_shared(dtype, lag, correction, is_true=is_true)]
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
