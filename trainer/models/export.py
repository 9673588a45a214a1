"""Final weights in the format of Hugging Face's transformers."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from trainer.base.atomic import write_atomically
from trainer.models.recipe import Recipe


def save_final(weights: Mapping[str, Tensor], recipe: Recipe, folder: Path) -> None:
    """Writes final.safetensors, and final/, which transformers' `from_pretrained` loads."""
    config, tensors = recipe.pretrained(weights)
    content = save({name: w.cpu().contiguous() for name, w in tensors.items()}, {"format": "pt"})
    write_atomically(folder / "final.safetensors", content)
    pretrained = folder / "final"
    pretrained.mkdir(exist_ok=True)
    write_atomically(pretrained / "config.json", json.dumps(config, indent=1).encode())
    _link(folder / "final.safetensors", pretrained / "model.safetensors")


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)
