"""What save_final writes is what was trained, in the format that transformers loads."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from tests.support.llama import SMALL, TOKENS
from tests.support.whole import whole
from trainer.models.export import save_final
from trainer.models.llama import Llama

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


@pytest.mark.parametrize("file", FILES)
def test_files_hold_the_weights_under_their_names(file: str, tmp_path: Path) -> None:
    weights = save(SMALL, tmp_path)
    found, metadata = read(tmp_path / file)
    assert metadata == {"format": "pt"}
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_finds_every_weight_and_no_other(tied: bool, tmp_path: Path) -> None:
    save(replace(SMALL, tied_embeddings=tied), tmp_path)
    model, report = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path / "final", output_loading_info=True
    )
    assert not any(report.values())
    assert model.config.tie_word_embeddings == tied


def test_every_size_of_the_recipe_reaches_the_config(tmp_path: Path) -> None:
    odd = replace(SMALL, rope_theta=12345.0, rms_norm_eps=3e-4, initializer_range=0.07)
    save(odd, tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "final")
    assert config.rope_parameters["rope_theta"] == odd.rope_theta
    assert config.rms_norm_eps == odd.rms_norm_eps
    assert config.initializer_range == odd.initializer_range
    assert config.bos_token_id is None
    assert config.eos_token_id is None, "2 would be an ordinary byte"
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "final")
    torch.testing.assert_close(model(TOKENS).logits, whole(odd)(TOKENS), rtol=1e-5, atol=1e-5)


def test_weights_lie_on_the_disk_once(tmp_path: Path) -> None:
    save(SMALL, tmp_path)
    assert os.path.samefile(*(tmp_path / file for file in FILES))


def test_a_second_save_replaces_the_first_in_both_places(tmp_path: Path) -> None:
    save(SMALL, tmp_path)
    weights = save(SMALL, tmp_path, seed=1)
    for file in FILES:
        found, _ = read(tmp_path / file)
        assert all(torch.equal(found[name], weight) for name, weight in weights.items())
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
