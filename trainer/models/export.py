"""Final weights: as Hugging Face's transformers store them, or else by our own names."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save
from torch import Tensor, nn

from trainer.base.atomic import write_atomically
from trainer.models.recipe import Recipe
from trainer.models.start import start_from

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
    """Sets the weights of the whole model, one stage, to those that `save_final` wrote.

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
