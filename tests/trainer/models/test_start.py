"""A training that starts from a checkpoint starts from its weights, to the bit, on any stages."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from pipegap.trainer.__main__ import main as trainer
from pipegap.trainer.config.compose import compose
from pipegap.trainer.config.identity import trial_id
from pipegap.trainer.models.decoder import Decoder
from pipegap.trainer.models.export import save_final, start_from
from pipegap.trainer.parts import build_emulated, build_parts
from tests.support import small
from tests.support.hybrid import HYBRID
from tests.support.llama import SMALL
from tests.support.moe import MOE
from tests.support.refusals import Refused

UNTIED = replace(SMALL, tied_embeddings=False)
RECIPES = {"llama": SMALL, "untied": UNTIED, "moe": MOE, "hybrid": HYBRID}


def stages(recipe: Decoder, number: int) -> list[nn.Module]:
    split = recipe.split(number, 16)
    return [recipe.stage(index, split) for index in range(number)]


def exported(recipe: Decoder, folder: Path) -> dict[str, torch.Tensor]:
    """Writes a checkpoint with weights of its own, which are returned."""
    [module] = stages(recipe, 1)
    recipe.initialise(module, seed=7)
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    for weight in weights.values():  # vectors too
        weight.add_(torch.randn(weight.shape) * 0.01)
    folder.mkdir(exist_ok=True)
    save_final(weights, recipe, folder)
    return weights


@pytest.mark.parametrize("name", RECIPES)
def test_what_was_exported_is_loaded(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    weights = exported(recipe, tmp_path)
    for number in (1, 2, 3):
        seen = set()
        for module in stages(recipe, number):
            start_from(str(tmp_path / "final"))(recipe, module, 0)
            for weight_name, weight in module.named_parameters():
                assert torch.equal(weight, weights[weight_name])
                seen.add(weight_name)
        assert seen == weights.keys()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Of the model of `small`."""
    words = [word for word in small.SMALL if word.startswith("model.")]
    node = compose(words)["model"]
    node.pop("_target_")
    exported(type(SMALL)(**node), tmp_path)
    return tmp_path / "final"


def test_a_trial_starts_there_and_its_id_has_the_weights(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "moved")
    configs = [
        small.config(tmp_path, *words)
        for words in (
            [f"from_pretrained={checkpoint}"],
            [f"from_pretrained={tmp_path / 'moved'}"],
            [f"from_pretrained={checkpoint}", "seed=1"],
            [],
        )
    ]
    assert len({trial_id(config, "d") for config in configs}) == 3
    assert trial_id(configs[0], "d") == trial_id(configs[1], "d")
    starts = []
    for config in (configs[0], configs[2]):
        executor = build_emulated(config, build_parts(config, 12), torch.device("cpu"))
        starts.append(executor.weights())
    trained = load_file(checkpoint / "model.safetensors")
    assert starts[0].keys() == trained.keys()
    for name, weight in trained.items():
        assert torch.equal(starts[0][name], weight)
        assert torch.equal(starts[1][name], weight)
    trained["model.norm.weight"] += 1
    save_file(trained, checkpoint / "model.safetensors")
    assert trial_id(configs[0], "d") != trial_id(configs[1], "d")


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "none": (str, "from_pretrained=none: must be a folder that is there, or org/name"),
    "org/none": (str, "must be a folder, or a model that the Hugging Face hub gives"),
    "final": (lambda folder: (folder / "config.json").unlink(), "=final: must hold a config.json"),
    "./final": (
        lambda folder: (folder / "config.json").write_text("["),
        "must hold a config.json (Expecting value",
    ),
    "././final": (cut, "has model.safetensors, which is not whole ("),
}
"""Word → damage to the checkpoint final, and what the line has; test_checkpoints.py has more."""


@pytest.mark.parametrize("word", BAD)
def test_a_checkpoint_that_cannot_be_read_is_one_line(
    word: str, checkpoint: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    damage, says = BAD[word]
    damage(checkpoint)
    given = small.overrides(tmp_path, f"from_pretrained={word}")
    assert says in refused(lambda: trainer(given))
