"""Trains the synchronous run of a config and measures its sharpness on the way; writes nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from trainer.base.randomness import stream_seed
from trainer.base.resources import reproducible, require_device
from trainer.config.plan import plan_trial
from trainer.executors.gradients import Diverged, Update
from trainer.models.loss import cross_entropy
from trainer.parts import Parts, build_emulated, build_parts
from trainer.sharpness.curvature import hessian_product, sharpness
from trainer.sharpness.preconditioner import inverse_root

CLIPPED = 20
"""Updates over which the factor of the clip is averaged: what a second moment of β₂ = 0.95 sees."""
Config = Mapping[str, Any]


class Sharpness(NamedTuple):
    """Where a synchronous run stands after `num_updates` updates."""

    num_updates: int
    train_loss: float
    lr: float
    """Of the last update."""
    largest: float
    """Eigenvalue of P⁻¹ H, times the mean factor by which the clip scaled the last gradients."""

    @property
    def k(self) -> float:
        """Learning rate times curvature, as in analysis/theory."""
        return self.lr * self.largest


def measured(config: Config, every: int, num_tokens: int) -> Iterator[Sharpness]:
    """The sharpness after each `every` updates and after the last one, over `num_tokens` tokens of
    the validation split; ends where the run diverges.

    The config is that of a synchronous trial of one stage. Raises BadInput for an optimizer whose
    preconditioner is not covered, and as `run_trial` does.
    """
    plan = plan_trial(config)
    device = require_device(config["device"])
    seed = stream_seed(config["seed"], "optimizer")
    with reproducible(seed, config["num_threads"], config["deterministic"]):
        parts = build_parts(config, plan.num_updates)
        executor = build_emulated(config, parts, device)
        [stage] = executor.stages
        seen: deque[Update] = deque(maxlen=CLIPPED)
        for first in range(0, plan.num_updates, every):
            last = min(first + every, plan.num_updates)
            try:
                executor.run(first, last, seen.append)
            except Diverged:
                return
            named = dict(zip(stage.versions.names, stage.versions.master, strict=True))
            weights = [*named.values()]
            batches = parts.validation.batches(config["eval_batch_size"], num_tokens)
            product = hessian_product(
                _module(config, parts).to(device),
                named,
                cross_entropy,
                (batch.to(device) for batch in batches),
            )
            half = inverse_root(config["optimizer"], stage.optimizer, weights, last)
            shapes = [weight.shape for weight in weights]
            largest = sharpness(product, half, shapes, config["seed"]) * _clipped(config, seen)
            yield Sharpness(last, seen[-1].loss, seen[-1].lr, largest)


def _module(config: Config, parts: Parts) -> nn.Module:
    """The whole model, whose own weights are not used."""
    with torch.device("meta"):
        module = parts.model.stage(0, parts.model.split(1, config["seq_len"]))
    return module.to_empty(device="cpu")


def _clipped(config: Config, seen: deque[Update]) -> float:
    """The mean factor by which the clip scaled gradients."""
    norm = config["clip_norm"]
    if norm is None:
        return 1.0
    return sum(min(1.0, norm / update.grad_norm) for update in seen) / len(seen)
