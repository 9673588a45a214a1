"""A training that starts from a checkpoint starts from its weights, to the bit, on any stages."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from tests.support.llama import SMALL, TOKENS
from tests.support.moe import MOE
from tests.support.refusals import Refused, name_of

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


def test_a_checkpoint_of_transformers_in_parts_and_in_bf16(tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL.pretrained({}).config))
    theirs.to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    [ours] = stages(SMALL, 1)
    start_from(str(tmp_path))(SMALL, ours, 0)
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    expected = theirs(TOKENS).logits
    torch.testing.assert_close(ours(TOKENS), expected, rtol=0, atol=1e-5)


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


BAD = {
    "from_pretrained=none": "from_pretrained=none: must be a folder that is there, or org/name",
    "from_pretrained=empty": "from_pretrained=empty: must hold a config.json",
    "from_pretrained=noweights": "from_pretrained=noweights: must hold model.safetensors, or",
    "from_pretrained=org/none": "must be a folder, or a model that the Hugging Face hub gives",
    "from_pretrained=final model.num_layers=3": "has num_hidden_layers=2, this model has 3",
    "from_pretrained=final model.rope_theta=5e5": "has rope_theta=100000.0, this model has 500000",
    "from_pretrained=yarn": "has rope_type=yarn, this model has default",
    "from_pretrained=lacks": "lacks model.norm.weight, which this model needs",
    "from_pretrained=more": "has model.norm.bias, which this model has not: remove",
    "from_pretrained=wide": "has model.norm.weight of [25], this model of [24]",
}
DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights cut off": (
        lambda folder: cut(folder / "model.safetensors", -10),
        "has model.safetensors, which is not whole (",
    ),
    "a head cut off": (
        lambda folder: cut(folder / "model.safetensors", 100),
        "has model.safetensors, which is not whole (",
    ),
    "impossible lengths": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 200),
        "has model.safetensors, which is not whole (",
    ),
    "whole numbers": (
        lambda folder: save_file(
            {name: w.int() for name, w in load_file(folder / "model.safetensors").items()},
            folder / "model.safetensors",
        ),
        "of torch.int32, which is no weight",
    ),
    "a deep config": (
        lambda folder: (folder / "config.json").write_text("[" * 100_000),
        "must hold a config.json (maximum recursion depth",
    ),
    "rotary positions in a list": (
        lambda folder: change_config(folder, rope_parameters=[1]),
        "has rope_type=[1], this model has default",
    ),
}


def cut(path: Path, end: int) -> None:
    path.write_bytes(path.read_bytes()[:end])


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_checkpoint_is_one_line(
    name: str, checkpoint: Path, refused: Refused, tmp_path: Path
) -> None:
    damage, says = DAMAGED[name]
    damage(checkpoint)
    words = small.overrides(tmp_path, f"from_pretrained={checkpoint}")
    assert says in refused(lambda: trainer(words))


def write_bad(checkpoint: Path, folder: Path) -> None:
    for name in ("final", "empty", "noweights", "yarn", "lacks", "more", "wide"):
        if name != "final":
            shutil.copytree(checkpoint, folder / name)
    (folder / "empty" / "config.json").unlink()
    (folder / "noweights" / "model.safetensors").unlink()
    config = json.loads((checkpoint / "config.json").read_text())
    config["rope_scaling"] = {"rope_type": "yarn", "factor": 4.0}
    (folder / "yarn" / "config.json").write_text(json.dumps(config))
    weights = load_file(checkpoint / "model.safetensors")
    vector = weights.pop("model.norm.weight")
    for name, others in {
        "lacks": {},
        "more": {"model.norm.weight": vector, "model.norm.bias": vector.clone()},
        "wide": {"model.norm.weight": torch.ones(25)},
    }.items():
        save_file({**weights, **others}, folder / name / "model.safetensors")


@pytest.mark.parametrize("words", BAD, ids=name_of)
def test_a_checkpoint_that_does_not_fit_is_one_line(
    words: str, checkpoint: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    write_bad(checkpoint, tmp_path)
    given = [*small.overrides(tmp_path), *words.split()]
    line = refused(lambda: trainer(given))
    assert BAD[words] in line
    assert line.count("from_pretrained=") == 1
