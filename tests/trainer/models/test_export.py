"""What save_final writes is what was trained, in the format that transformers loads."""

import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from pipegap.trainer.models.export import save_final
from pipegap.trainer.models.llama import Llama
from tests.support.llama import SMALL
from tests.support.whole import whole

transformers = pytest.importorskip("transformers")

FILES = ["final.safetensors", "final/model.safetensors"]


def save(recipe: Llama, folder: Path, seed: int = 0) -> dict[str, Tensor]:
    weights = dict(whole(recipe, seed).named_parameters())
    save_final(weights, recipe, folder)
    return weights


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        return {name: file.get_tensor(name) for name in names}, file.metadata()


def test_both_files_hold_the_last_weights_under_their_names(tmp_path: Path) -> None:
    """They are one file of the disk."""
    save(SMALL, tmp_path)
    weights = save(SMALL, tmp_path, seed=1)
    for file in FILES:
        exported, metadata = read(tmp_path / file)
        assert metadata == {"format": "pt"}, file
        assert exported.keys() == weights.keys(), file
        assert all(torch.equal(exported[name], weight) for name, weight in weights.items()), file
    assert os.path.samefile(*(tmp_path / file for file in FILES))


def test_copies_where_a_file_system_has_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    save(SMALL, tmp_path)
    first, second = (tmp_path / file for file in FILES)
    assert first.read_bytes() == second.read_bytes()
    assert not os.path.samefile(first, second)
