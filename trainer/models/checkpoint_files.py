"""The files of a model as Hugging Face's transformers store it: a folder, or a name on the hub."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from trainer.base.atomic import digests
from trainer.base.errors import BadInput, first_line

KEY = "from_pretrained"


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

        wanted = ["config.json", "model*.safetensors"]
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=wanted))
    except Exception as error:  # the hub's client and the network have their own
        allowed = "must be a folder, or a model that the Hugging Face hub gives"
        raise BadInput(KEY, word, f"{allowed} ({first_line(error)})") from None


def weight_files(word: str) -> list[Path]:
    """The files of weights, in order; raises BadInput if there is none."""
    files = sorted(checkpoint_folder(word).glob("model*.safetensors"))
    if not files or not all(file.is_file() for file in files):
        raise BadInput(KEY, word, "must hold model*.safetensors")
    return files


def published_config(word: str) -> dict[str, Any]:
    """The content of config.json; raises BadInput if there is none."""
    path = checkpoint_folder(word) / "config.json"
    if not path.is_file():
        raise BadInput(KEY, word, "must hold a config.json")
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(KEY, word, f"must hold a config.json ({error})") from None
    if not isinstance(config, dict):
        raise BadInput(KEY, word, "must hold a config.json of keys and values")
    return config


def weights_digest(word: str) -> str:
    """SHA-256 over the contents of the files of weights."""
    try:
        return hashlib.sha256("".join(digests(weight_files(word))).encode()).hexdigest()
    except OSError as error:
        raise BadInput(KEY, word, f"must be readable ({error.strerror})") from None
