"""Weights in files, as transformers stores them: what a training starts from and what it leaves.

A recipe's export only moves entries: `pretrained` of tensors that hold the numbers of entries says
which entry of the checkpoint is which of ours. So every recipe that can be exported can be loaded.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from trainer.base.atomic import write_atomically
from trainer.base.errors import BadInput, first_line, short
from trainer.models.checkpoint_files import KEY, published_config, weight_files
from trainer.models.recipe import Recipe

FINAL = "final.safetensors"


def save_final(weights: Mapping[str, Tensor], recipe: Recipe, folder: Path) -> None:
    """Writes final.safetensors, and final/, which transformers' `from_pretrained` loads.

    Of a model that transformers does not have, final.safetensors holds the weights by our own
    names, and there is no final/.
    """
    if recipe.not_exported is not None:
        _save(weights, folder / FINAL)
        return
    config, tensors = recipe.pretrained(weights)
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

CHANGES_NOTHING = {"architectures", "initializer_range", "dtype", "bos_token_id", "eos_token_id"}
"""Keys of a published config that the weights and what is made of them do not depend on."""


def start_from(checkpoint: str | None) -> Start:
    """How a training starts; None: from the seed."""
    if checkpoint is None:
        return lambda recipe, module, seed: recipe.initialise(module, seed)
    return partial(_from_checkpoint, checkpoint)


def check_start(recipe: Recipe, checkpoint: str | None) -> None:
    """Raises BadInput unless the recipe makes the model of the checkpoint."""
    if checkpoint is None:
        return
    ours = {"rope_type": "default", **recipe.pretrained(_whole(recipe)).config}
    theirs = _flat(published_config(checkpoint))
    for key, value in ours.items():
        if key in theirs and key not in CHANGES_NOTHING and theirs[key] != value:
            allowed = f"has {key}={theirs[key]}, this model has {value}: choose its model"
            raise BadInput(KEY, checkpoint, allowed)


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with its rotary keys where older versions of transformers have them, and with the
    kind of its rotary positions, of which recipes have the default one."""
    given = config.get("rope_parameters") or config.get("rope_scaling")
    rope = given if isinstance(given, dict) else {"rope_type": given or "default"}
    kind = rope.get("rope_type", rope.get("type", "default"))
    return {**config, **rope, "rope_type": kind}


@torch.no_grad()
def _from_checkpoint(checkpoint: str, recipe: Recipe, module: nn.Module, seed: int) -> None:
    """Raises BadInput if the checkpoint lacks a weight, has another one, or one of another size."""
    check_start(recipe, checkpoint)
    numbered, total = _whole(recipe), 0
    for name, weight in module.named_parameters():
        entries = torch.arange(total, total + weight.numel())
        numbered[name], total = entries.view(weight.shape), total + weight.numel()
    exported = recipe.pretrained(numbered).tensors
    values = torch.empty(total)
    for name, entries in _read(checkpoint, exported):
        values[exported[name].flatten()] = entries.flatten().float()
    for name, weight in module.named_parameters():
        weight.copy_(values[numbered[name]])


def _whole(recipe: Recipe) -> dict[str, Tensor]:
    """All weights by name, without memory."""
    with torch.device("meta"):
        return dict(recipe.stage(0, recipe.split(1, 1)).named_parameters())


@contextmanager
def _opened(file: Path, checkpoint: str) -> Iterator[Any]:
    """Opens a file of weights; raises BadInput if it is none, or not whole."""
    try:
        with safe_open(file, "pt") as content:
            yield content
    except SafetensorError as error:
        allowed = f"has {file.name}, which is not whole ({short(first_line(error))})"
        raise BadInput(KEY, checkpoint, allowed) from None


def _read(checkpoint: str, expected: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """The checkpoint's tensors by name: all that are expected and not on the meta device."""
    file_of: dict[str, Path] = {}
    for file in weight_files(checkpoint):
        with _opened(file, checkpoint) as content:
            file_of.update(dict.fromkeys(content.keys(), file))
    pairs = ((file_of, expected, "this model"), (expected, file_of, "the checkpoint"))
    for has, lacks, whose in pairs:
        if others := sorted(has.keys() - lacks.keys()):
            raise BadInput(KEY, checkpoint, f"{others[0]} is not in {whose}: choose its model")
    tensors = []
    for name, entries in expected.items():
        if entries.is_meta:
            continue
        with _opened(file_of[name], checkpoint) as content:
            tensor = content.get_tensor(name)
        if not tensor.is_floating_point():
            raise BadInput(KEY, checkpoint, f"has {name} of {tensor.dtype}, which is no weight")
        if tensor.shape != entries.shape:
            allowed = f"has {name} of {[*tensor.shape]}, this model of {[*entries.shape]}"
            raise BadInput(KEY, checkpoint, allowed)
        tensors.append((name, tensor))
    return tensors
