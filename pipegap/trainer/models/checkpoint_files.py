"""The files of a model as Hugging Face's transformers store it: a folder, or a name on the hub."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from pipegap.trainer.base.atomic import digests
from pipegap.trainer.base.errors import BadInput, first_line, some

KEY = "from_pretrained"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def checkpoint_folder(word: str) -> Path:
    """The folder of a checkpoint; `org/name[@revision]` is downloaded unless it is in the cache.

    Raises BadInput if there is none.
    """
    if os.path.isdir(word):
        return Path(word)
    if word.count("/") != 1 or word.startswith((".", "/")):
        raise BadInput(KEY, word, "must be a folder that is there, or org/name[@revision]")
    name, _, revision = word.partition("@")
    try:
        from huggingface_hub import snapshot_download

        # No pytorch_model.bin beside them: it is as large, and is not read.
        patterns = ["config.json", INDEX, "model*.safetensors"]
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=patterns))
    except Exception as error:  # the hub's client and the network raise errors of many types
        allowed = "must be a folder, or a model that the Hugging Face hub gives"
        raise BadInput(KEY, word, f"{allowed} ({first_line(error)})") from None


def weight_files(word: str) -> list[Path]:
    """The files of weights that transformers reads, in order; other files beside them do not count.

    They are model.safetensors, or else the files that the index names. Raises BadInput if there are
    none, or if one is missing.
    """
    folder = checkpoint_folder(word)
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if not (folder / INDEX).is_file():
        allowed = f"must hold {SINGLE}, or {INDEX} and its files (pytorch_model.bin is not read:"
        raise BadInput(KEY, word, f"{allowed} save the model anew with transformers)")
    names = _content(word, INDEX).get("weight_map")
    if not isinstance(names, dict) or not names or {*map(type, names.values())} != {str}:
        raise BadInput(KEY, word, f"has no weight_map of names to files in {INDEX}")
    files = sorted({folder / name for name in names.values()})
    if lacking := [file.name for file in files if not file.is_file()]:
        raise BadInput(KEY, word, f"lacks {some(lacking)}, which {INDEX} names")
    return files


def published_config(word: str) -> dict[str, Any]:
    """The content of config.json; raises BadInput if there is none."""
    if (checkpoint_folder(word) / "adapter_config.json").is_file():
        raise BadInput(KEY, word, "has an adapter, which is not read: merge it into the weights")
    return _content(word, "config.json")


def _content(word: str, name: str) -> dict[str, Any]:
    path = checkpoint_folder(word) / name
    if not path.is_file():
        raise BadInput(KEY, word, f"must hold a {name}")
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(KEY, word, f"must hold a {name} ({error})") from None
    if not isinstance(content, dict):
        raise BadInput(KEY, word, f"must hold a {name} of keys and values")
    return content


def weights_digest(word: str) -> str:
    """SHA-256 over the contents of the files of weights."""
    try:
        return hashlib.sha256("".join(digests(weight_files(word))).encode()).hexdigest()
    except OSError as error:
        raise BadInput(KEY, word, f"must be readable ({error.strerror})") from None
