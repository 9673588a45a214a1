"""Final weights in the format of Hugging Face's transformers."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from trainer.base.atomic import write_atomically
from trainer.models.llama import Llama


def save_final(weights: Mapping[str, Tensor], recipe: Llama, folder: Path) -> None:
    """Writes final.safetensors, and final/, which `LlamaForCausalLM.from_pretrained` loads."""
    content = save({name: w.cpu().contiguous() for name, w in weights.items()}, {"format": "pt"})
    write_atomically(folder / "final.safetensors", content)
    pretrained = folder / "final"
    pretrained.mkdir(exist_ok=True)
    config = json.dumps(hugging_face_config(recipe), indent=1)
    write_atomically(pretrained / "config.json", config.encode())
    _link(folder / "final.safetensors", pretrained / "model.safetensors")


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def hugging_face_config(recipe: Llama) -> dict[str, Any]:
    """What `transformers.LlamaConfig` needs to build the same model."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": recipe.vocab_size,
        "hidden_size": recipe.hidden_size,
        "num_hidden_layers": recipe.num_layers,
        "num_attention_heads": recipe.num_heads,
        "num_key_value_heads": recipe.num_kv_heads,
        "intermediate_size": recipe.intermediate_size,
        "rope_theta": recipe.rope_theta,
        "rms_norm_eps": recipe.rms_norm_eps,
        "initializer_range": recipe.initializer_range,
        "tie_word_embeddings": recipe.tied_embeddings,
        "hidden_act": "silu",
        "bos_token_id": None,  # the tokenizer knows them: transformers would assume 1 and 2
        "eos_token_id": None,
        "dtype": "float32",
    }
