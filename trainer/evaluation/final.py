"""The model that a trial ended with, from the weights that `save_final` kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trainer.base.build import build
from trainer.base.code import use_code
from trainer.data.words import tokenizer_of
from trainer.evaluation.adapter import StageLM
from trainer.models.export import FINAL, load_final

Config = Mapping[str, Any]


def has_final(folder: Path) -> bool:
    """Whether the trial in `folder` kept its final weights."""
    return (folder / FINAL).is_file()


def final_model(config: Config, folder: Path, max_length: int, device: torch.device) -> StageLM:
    """The model of the trial in `folder`, as one stage in fp32, with the tokenizer of its data.

    Raises BadInput if the weights are not those of the config's model, or the data has lost its
    tokenizer.
    """
    use_code(config.get("code"))
    model = build(config["model"])
    with torch.device("meta"):
        stage = model.stage(0, model.split(1, config["seq_len"]))
    stage = stage.to_empty(device="cpu")
    load_final(folder, model, stage)
    tokenizer, end = tokenizer_of(config["data"])
    ends_with = tokenizer.token_to_id(end)
    assert ends_with is not None, "the tokenizer has it"
    return StageLM(stage.to(device), tokenizer, ends_with, max_length, model.vocab_size)
