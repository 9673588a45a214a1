"""What a trial will take on disk, about, known before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from trainer.build import locate
from trainer.corrections.none import NoCorrection
from trainer.operations import Schedule

FP32 = 4
OPTIMIZER_BUFFERS = 2
"""fp32 buffers a weight of an optimizer's state: AdamW's two; Muon has one, SOAP more."""
ROW, RECORD = 190, 4_000
"""Bytes of a row of metrics.jsonl without diagnostics, and of all that is as long for any trial."""


def checkpoint_bytes(config: Mapping[str, Any], schedule: Schedule, num_parameters: int) -> int:
    """A checkpoint: the fp32 master, living versions, optimizer state, a correction's buffer.

    The newest version in fp32 is the master itself. Stages count as if they were of one size.
    """
    dtype: torch.dtype = getattr(torch, config["dtype"])
    correction: Any = locate(config["correction"]["_target_"])
    ahead = [lag + 1 for lag in schedule.lags if lag and correction.reads_ahead]
    versions = (sum(schedule.lags) + sum(ahead)) / len(schedule.lags) + 1
    remembers = correction is not NoCorrection and not correction.reads_ahead
    buffers = OPTIMIZER_BUFFERS + remembers
    master = 0 if dtype == torch.float32 else FP32
    return round(num_parameters * (master + versions * dtype.itemsize + buffers * FP32))


def kept_bytes(config: Mapping[str, Any], num_updates: int, num_parameters: int) -> int:
    """What is left of a finished trial: its record, and the final weights if they are saved."""
    weights = FP32 * num_parameters if config["save_final"] else 0
    return RECORD + ROW * num_updates + weights
