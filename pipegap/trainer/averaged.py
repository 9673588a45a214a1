"""Reads the last weights that a trial kept, and evaluates their mean as the trial did its own."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from pipegap.trainer.base.build import build, use_code
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.resources import require_device
from pipegap.trainer.executors.emulated import mean_loss
from pipegap.trainer.folder.record import kept_weights
from pipegap.trainer.models.layers import cross_entropy
from pipegap.trainer.parts import open_data
from pipegap.trainer.stages.versions import dtypes_of


def whole_sets(folder: Path) -> list[int]:
    """The numbers of updates after which a trial kept its weights, ascending.

    A file that is not whole is left out, with a warning.
    """
    return [update for update, path in kept_weights(folder).items() if _is_whole(path)]


def _is_whole(path: Path) -> bool:
    try:
        with safe_open(path, "pt"):  # compares the file's size with that of its tensors
            return True
    except SafetensorError as error:
        warnings.warn(f"{path} is left out: it is not whole ({error})", stacklevel=1)
        return False


def mean_of(folder: Path, updates: Sequence[int]) -> dict[str, Tensor]:
    """The mean by name of the weights that a trial kept after these numbers of updates.

    Raises BadInput if they are not all of one model.
    """
    sets = kept_weights(folder)
    total: dict[str, Tensor] = {}
    for update in updates:
        # One set at a time: memory holds two sets, the sum and this one.
        weights = load_file(sets[update])
        if total and _shapes(weights) != _shapes(total):
            raise BadInput("average", sets[update], "has other weights than the set before it")
        for name, weight in weights.items():
            total[name] = total[name].add_(weight) if name in total else weight
    return {name: weight.div_(len(updates)) for name, weight in total.items()}


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: weight.shape for name, weight in weights.items()}


@torch.no_grad()
def validation_loss(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> float:
    """Nats per token of these weights of a trial's model on its whole validation split.

    Raises BadInput if the weights are not those of the model.
    """
    use_code(config.get("code"))
    device, recipe = require_device(config["device"]), build(config["model"])
    module = recipe.stage(0, recipe.split(1, config["seq_len"]))
    # As `Versions.bind_others` casts them: routers, for one, are read in fp32 in any case.
    dtypes = dtypes_of(module, getattr(torch, config["eval_dtype"]))
    for (name, weight), dtype in zip(module.named_parameters(), dtypes, strict=True):
        if name not in weights or weights[name].shape != weight.shape:
            raise BadInput("average", name, "is another weight, or none, in the sets that it kept")
        weight.data = weights[name].to(device, dtype)
    _, validation = open_data(config)
    batches = validation.batches(config["eval_batch_size"])
    return mean_loss([module], cross_entropy, (batch.to(device) for batch in batches))
