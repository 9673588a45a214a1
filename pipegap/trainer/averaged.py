"""Reads the last weights that a trial kept, and evaluates their mean as the trial did its own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from pipegap.trainer.base.build import build
from pipegap.trainer.base.code import use_code
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.resources import require_device
from pipegap.trainer.executors.emulated import mean_loss
from pipegap.trainer.folder.checkpoint import kept_weights
from pipegap.trainer.models.loss import cross_entropy
from pipegap.trainer.parts import open_data


def mean_of_last(folder: Path, number: int) -> tuple[list[int], dict[str, Tensor]]:
    """The updates after which a trial kept its last `number` sets of weights, ascending, and their
    mean by name.

    Raises BadInput if it kept fewer.
    """
    kept = kept_weights(folder)[-number:]
    if len(kept) < number:
        allowed = f"must be at most {len(kept)}, the sets that {folder} has (save_last={number})"
        if not kept:
            needs = f"needs weights, and {folder.name} kept none: save_last={number} keeps them"
            allowed = f"{needs}, of a run into another store (results=)"
        raise BadInput("average", number, allowed)
    total: dict[str, Tensor] = {}
    for path in kept:
        for name, weight in load_file(path).items():
            total[name] = total[name].add_(weight) if name in total else weight
    return [int(path.stem) for path in kept], {n: w.div_(number) for n, w in total.items()}


@torch.no_grad()
def validation_loss(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> float:
    """Nats per token of these weights of a trial's model on its whole validation split."""
    use_code(config.get("code"))
    device, recipe = require_device(config["device"]), build(config["model"])
    module = recipe.stage(0, recipe.split(1, config["seq_len"]))
    for name, weight in module.named_parameters():
        weight.copy_(weights[name])
    module.to(device, getattr(torch, config["eval_dtype"]))
    _, validation = open_data(config)
    batches = validation.batches(config["eval_batch_size"])
    return mean_loss([module], cross_entropy, (batch.to(device) for batch in batches))
