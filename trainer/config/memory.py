"""The memory that a rank needs for weights, gradients and states, known before a trial runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from trainer.base.build import locate
from trainer.config.weights import weights_of
from trainer.corrections.none import NoCorrection
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


def _shared(dtype: torch.dtype, lag: int, correction: NoCorrection, *, is_true: bool) -> int:
    """Bytes per parameter whatever the optimizer is."""
    num_leaves = lag + correction.num_leaves_ahead(lag) + (dtype != torch.float32)
    num_gradients = 2 if is_true and lag else 1
    fp32 = 1 + num_gradients + correction.num_buffers(lag)
    return FP32 * fp32 + dtype.itemsize * num_leaves
