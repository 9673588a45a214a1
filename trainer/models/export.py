"""Weights in files, as transformers stores them: what a training starts from and what it leaves.

A recipe's export only moves entries: `pretrained` of tensors that hold the numbers of entries says
which entry of the checkpoint is which of ours. So every recipe that can be exported can be loaded.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from pipegap.trainer.base.atomic import write_atomically
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.models.checkpoint_config import check_config
from pipegap.trainer.models.checkpoint_files import KEY
from pipegap.trainer.models.checkpoint_tensors import Tensors
from pipegap.trainer.models.recipe import Recipe

FINAL = "final.safetensors"


def save_final(weights: Mapping[str, Tensor], recipe: Recipe, folder: Path) -> None:
    """Writes final.safetensors, and final/, which transformers' `from_pretrained` loads.

    Of a model that transformers does not have, final.safetensors holds the weights by our own
    names, and there is no final/.
    """
    if recipe.not_exported is not None:
        _save(weights, folder / FINAL)
        return
    config, tensors, *_ = recipe.pretrained(weights)
    _save(tensors, folder / FINAL)
    pretrained = folder / "final"
    pretrained.mkdir(exist_ok=True)
    write_atomically(pretrained / "config.json", json.dumps(config, indent=1).encode())
    _link(folder / FINAL, pretrained / "model.safetensors")


def load_final(folder: Path, recipe: Recipe, module: nn.Module) -> None:
    """Sets the weights of the whole model, one stage, to what `save_final` wrote.

    Raises BadInput if they are not this model's.
    """
    if recipe.not_exported is None:
        start_from(str(folder / "final"))(recipe, module, 0)
    else:
        module.load_state_dict(load_file(folder / FINAL))


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    content = save({name: w.cpu().contiguous() for name, w in tensors.items()}, {"format": "pt"})
    write_atomically(path, content)


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


Start = Callable[[Recipe, nn.Module, int], None]
"""(recipe, stage, seed): sets the weights of the stage."""


def start_from(checkpoint: str | None) -> Start:
    """How a training starts; None: from the seed."""
    if checkpoint is None:
        return lambda recipe, module, seed: recipe.initialise(module, seed)
    return partial(_from_checkpoint, checkpoint)


def check_start(recipe: Recipe, checkpoint: str | None) -> None:
    """Raises BadInput unless the recipe makes the model of the checkpoint."""
    if checkpoint is None:
        return
    if (problem := recipe.not_exported) is not None:
        raise BadInput(KEY, checkpoint, f"cannot hold this model, which {problem}")
    check_config(recipe.pretrained(_whole(recipe)), checkpoint)


@torch.no_grad()
def _from_checkpoint(checkpoint: str, recipe: Recipe, module: nn.Module, seed: int) -> None:
    """Raises BadInput if the checkpoint lacks a weight, has another one, or one of another size."""
    check_start(recipe, checkpoint)
    numbered, total = _whole(recipe), 0
    for name, weight in module.named_parameters():
        entries = torch.arange(total, total + weight.numel())
        numbered[name], total = entries.view(weight.shape), total + weight.numel()
    exported, values = recipe.pretrained(numbered), torch.empty(total)
    with Tensors(checkpoint, exported) as tensors:
        for name, entries in tensors.read():
            values[exported.tensors[name].flatten()] = entries.flatten().float()
    for name, weight in module.named_parameters():
        weight.copy_(values[numbered[name]])


def _whole(recipe: Recipe) -> dict[str, Tensor]:
    """All weights by name, without memory."""
    with torch.device("meta"):
        return dict(recipe.stage(0, recipe.split(1, 1)).named_parameters())
