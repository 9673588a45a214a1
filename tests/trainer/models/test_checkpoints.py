"""A checkpoint as others wrote it is the model that transformers makes of it, or is refused."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pipegap.trainer.__main__ import main as trainer
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.compose import compose
from pipegap.trainer.config.identity import trial_id
from pipegap.trainer.models.checkpoint_files import weights_digest
from pipegap.trainer.models.decoder import Decoder
from pipegap.trainer.models.export import CHANGES_NOTHING, check_config, save_final, start_from
from pipegap.trainer.models.llama import Llama
from pipegap.trainer.parts import build_emulated, build_parts
from tests.support import small_sweep
from tests.support.models import HYBRID, MOE, SMALL, TOKENS, assert_near, whole
from tests.support.processes import Refused

transformers = pytest.importorskip("transformers")

RECIPES: Mapping[str, Decoder] = {
    "llama": SMALL,
    "untied": replace(SMALL, tied_embeddings=False),
    "moe": replace(MOE, num_layers=2),
    "hybrid": HYBRID,
}
Tensors = dict[str, Tensor]
Change = Callable[[Path], object]


def saved(recipe: Decoder, folder: Path, **kinds: Any) -> Any:
    """A model of transformers with weights of its own, as transformers saves it."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**recipe.pretrained({}).config)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3).add_(torch.randn_like(weight) * 0.02)
    model.save_pretrained(folder, **kinds)
    return model


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def says(*absent: str, **values: Any) -> Change:
    """Writes keys of config.json, or takes them out."""

    def change(folder: Path) -> None:
        content = {k: v for k, v in config_of(folder).items() if k not in absent} | values
        (folder / "config.json").write_text(json.dumps(content))

    return change


def holds(change: Callable[[Tensors], object]) -> Change:
    """Changes the tensors of model.safetensors."""

    def changed(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return changed


def in_parts(folder: Path, number: int, of: Callable[[Tensor], Tensor] = Tensor.clone) -> None:
    """The single file once more as so many files."""
    tensors = load_file(folder / "model.safetensors")
    for part in range(number):
        names = sorted(tensors)[part::number]
        file = folder / f"model-{part + 1:05}-of-{number:05}.safetensors"
        save_file({name: of(tensors[name]) for name in names}, file, {"format": "pt"})


def index(folder: Path, number: int) -> None:
    """The index of these files."""
    files = sorted(folder.glob(f"model-*-of-{number:05}.safetensors"))
    names = {name: file.name for file in files for name in load_file(file)}
    content = json.dumps({"metadata": {}, "weight_map": names})
    (folder / "model.safetensors.index.json").write_text(content)


def shards_beside_stale_ones(folder: Path) -> None:
    in_parts(folder, 2)
    in_parts(folder, 3, lambda tensor: tensor + 0.5)
    index(folder, 2)
    (folder / "model.safetensors").unlink()


def single_beside_stale_shards(folder: Path) -> None:
    in_parts(folder, 3, lambda tensor: tensor + 0.5)
    index(folder, 3)


def all_experts_at_once(folder: Path) -> None:
    """As transformers has them in memory."""
    tensors = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    tensors.pop("lm_head.weight")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Q = "model.layers.0.self_attn.q_proj.weight"
INV_FREQ = "model.layers.1.self_attn.rotary_emb.inv_freq"
without_prefix = holds(
    lambda t: [t.update({name.removeprefix("model."): t.pop(name)}) for name in [*t]]
)
TAKEN: dict[str, tuple[str, Change]] = {
    "as saved": ("llama", says()),
    "a head of its own": ("untied", says()),
    "expert by expert": ("moe", says()),
    "all experts at once": ("moe", all_experts_at_once),
    "with a shared expert": ("hybrid", says()),
    "more predicted tokens": ("hybrid", holds(lambda t: t.update({"mtp.x": torch.ones(2)}))),
    "its embedding twice": ("llama", holds(lambda t: t.update({HEAD: t[EMBEDDING].clone()}))),
    "its embedding as head": ("llama", holds(lambda t: t.update({HEAD: t.pop(EMBEDDING)}))),
    "rotary frequencies": ("llama", holds(lambda t: t.update({INV_FREQ: torch.ones(4)}))),
    "without a head's prefix": ("llama", without_prefix),
    "without it, with a head": ("untied", without_prefix),
    "experts without it": ("moe", without_prefix),
    "in half precision": ("llama", holds(lambda t: t.update({k: t[k].half() for k in t}))),
    "shards beside stale ones": ("llama", shards_beside_stale_ones),
    "one file beside stale shards": ("llama", single_beside_stale_shards),
    "positions among the keys": ("llama", says("rope_parameters", rope_theta=1e5)),
    "in an older dict": (
        "llama",
        says(
            rope_scaling={"rope_theta": 1e5, "type": "default"}, rope_parameters={"rope_theta": 7}
        ),
    ),
    "two bases, one is read": ("llama", says(rope_theta=7.0)),
    "no size of heads": ("llama", says("head_dim")),
    "null for a default": ("llama", says(head_dim=None, rope_scaling=None)),
    "layers by their interval": ("hybrid", says("layer_types", full_attention_interval=4)),
    "another dropout and length": (
        "llama",
        says(attention_dropout=0.5, max_position_embeddings=4, use_cache=False, pretraining_tp=2),
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    family, change = TAKEN[name]
    recipe = RECIPES[family]
    saved(recipe, tmp_path)
    change(tmp_path)
    ours = whole(recipe, seed=3)
    start_from(str(tmp_path))(recipe, ours, 0)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    # A hundred units of float32's rounding: products with other kernels differ by some tens.
    assert_near(ours(TOKENS), theirs(TOKENS).logits, 1.2e-5)


REFUSED: dict[str, tuple[str, Change, str]] = {
    "as many keys as heads": (
        "llama",
        says("num_key_value_heads"),
        "has no num_key_value_heads in its config.json, which means 6; this model has 2: "
        "set model.num_kv_heads=6",
    ),
    "no word of ties": (
        "llama",
        says("tie_word_embeddings"),
        "means False; this model has True: set model.tied_embeddings=False",
    ),
    "scaled positions": (
        "llama",
        says(rope_parameters={"rope_type": "llama3", "rope_theta": 1e5, "factor": 8.0}),
        "has rope_type=llama3, this model has default",
    ),
    "scaled, as they wrote it": (
        "llama",
        says("rope_parameters", rope_theta=1e5, rope_scaling={"type": "linear", "factor": 2.0}),
        "has rope_type=linear, this model has default",
    ),
    "positions by kind of layer": (
        "hybrid",
        says(rope_parameters={"full_attention": {"rope_theta": 1e5}}),
        "has rope_type={'full_attention': {'rope_theta': 100000.0}}, this model has default",
    ),
    "less of a head rotated": (
        "hybrid",
        says(rope_parameters={"rope_theta": 1e5, "partial_rotary_factor": 0.5}),
        "has partial_rotary_factor=0.5, this model has 0.25: set model.partial_rotary_factor=0.5",
    ),
    "an interval that is none": (
        "hybrid",
        says("layer_types", full_attention_interval=0),
        "has no layer_types in its config.json, nor keys that determine it (",
    ),
    "shares as they are": ("moe", says("norm_topk_prob"), "has no norm_topk_prob in its config"),
    "more experts": (
        "moe",
        says("num_experts", num_local_experts=16),
        "which means 16; this model has 8: set model.num_experts=16",
    ),
    "another architecture": (
        "llama",
        says(model_type="mistral", sliding_window=4),
        "has model_type=mistral, this model has llama",
    ),
    "no architecture": ("llama", says("model_type"), "has no model_type in its config.json, where"),
    "an adapter": (
        "llama",
        lambda folder: (folder / "adapter_config.json").write_text("{}"),
        "has an adapter, which is not read: merge it",
    ),
    "eight bits": (
        "llama",
        holds(lambda t: t.update({Q: t[Q].to(torch.float8_e4m3fn)})),
        f"has {Q} of torch.float8_e4m3fn, which is no weight",
    ),
    "another head": (
        "llama",
        holds(lambda t: t.update({HEAD: t[EMBEDDING] + 1})),
        f"has another {HEAD} than {EMBEDDING}, which its config.json ties to it: set",
    ),
    "no head": ("untied", holds(lambda t: t.pop(HEAD)), f"lacks {HEAD}, which this model needs"),
    "more rows than words": (
        "llama",
        holds(lambda t: t.update({EMBEDDING: torch.ones(64, 48)})),
        f"has {EMBEDDING} of [64, 48], this model of [61, 48]",
    ),
    "more tensors": (
        "llama",
        holds(lambda t: t.update({"score.weight": torch.ones(2, 48)})),
        "has score.weight, which this model does not have: remove it from its files",
    ),
    "an expert that is not whole": (
        "moe",
        holds(lambda t: t.pop("model.layers.0.mlp.experts.3.up_proj.weight")),
        "lacks model.layers.0.mlp.experts.3.up_proj.weight, which this model needs",
    ),
    "an expert of another size": (
        "moe",
        holds(lambda t: t.update({"model.layers.0.mlp.experts.3.up_proj.weight": torch.ones(8)})),
        "has model.layers.0.mlp.experts.3.up_proj.weight of [8], this model of [24, 48]",
    ),
    "a file that is not there": (
        "llama",
        lambda folder: [
            shards_beside_stale_ones(folder),
            (folder / "model-00002-of-00002.safetensors").unlink(),
        ],
        "lacks model-00002-of-00002.safetensors, which model.safetensors.index.json names",
    ),
    "a tensor in two files": (
        "llama",
        lambda folder: [shards_beside_stale_ones(folder), in_both(folder)],
        f"has {EMBEDDING} in two files",
    ),
    "files without an index": (
        "llama",
        lambda folder: [in_parts(folder, 2), (folder / "model.safetensors").unlink()],
        "must hold model.safetensors, or model.safetensors.index.json and its files",
    ),
    "an index of nothing": (
        "llama",
        lambda folder: [
            (folder / "model.safetensors").unlink(),
            (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": 1}}'),
        ],
        "has no weight_map of names to files in model.safetensors.index.json",
    ),
}


def in_both(folder: Path) -> None:
    files = sorted(folder.glob("*-of-00002.safetensors"))
    tensors: Tensors = {name: w for file in files for name, w in load_file(file).items()}
    for file in files:
        save_file({**load_file(file), EMBEDDING: tensors[EMBEDDING]}, file, {"format": "pt"})


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named_by_its_cause(name: str, tmp_path: Path) -> None:
    family, change, cause = REFUSED[name]
    recipe = RECIPES[family]
    saved(recipe, tmp_path)
    change(tmp_path)
    with pytest.raises(BadInput) as refused:
        start_from(str(tmp_path))(recipe, whole(recipe, seed=3), 0)
    line = str(refused.value)
    assert cause in line
    assert len(line.splitlines()) == 1


TOGETHER = {"hidden_size", "num_hidden_layers", "num_attention_heads"}
"""Keys without which transformers refuses the rest."""


def meaning(config: Any, key: str) -> Any:
    """What transformers' config makes of a key."""
    of_heads = config.hidden_size // config.num_attention_heads
    rest = {"head_dim": of_heads, **config.rope_parameters}
    return getattr(config, key, rest.get(key))


@pytest.mark.parametrize("family", RECIPES)
def test_an_absent_key_means_what_transformers_makes_of_it(family: str, tmp_path: Path) -> None:
    model = RECIPES[family].pretrained({})
    kept = model.config.keys() - CHANGES_NOTHING - {"model_type"}
    assert kept <= model.defaults.keys()
    for key in sorted(kept - TOGETHER):
        content = {name: value for name, value in model.config.items() if name != key}
        (tmp_path / "config.json").write_text(json.dumps(content))
        theirs = meaning(transformers.AutoConfig.from_pretrained(tmp_path), key)
        if theirs == model.config[key]:
            check_config(model, str(tmp_path))
            continue
        with pytest.raises(BadInput, match=f"has no {key} in its config.json, which") as refused:
            check_config(model, str(tmp_path))
        assert f"which means {theirs}; this model has {model.config[key]}" in str(refused.value)


@pytest.mark.parametrize("family", RECIPES)
def test_another_value_of_any_key_is_refused(family: str, tmp_path: Path) -> None:
    model = RECIPES[family].pretrained({})
    for key in sorted(model.config.keys() - CHANGES_NOTHING | {"quantization_config"}):
        (tmp_path / "config.json").write_text(json.dumps({**model.config, key: "another"}))
        with pytest.raises(BadInput, match=f"has {key}=another, this model has "):
            check_config(model, str(tmp_path))


def test_all_transformers_says_by_itself_is_known() -> None:
    """The tables hold for every key at once, so that no size hides another."""
    for recipe in RECIPES.values():
        model = recipe.pretrained({})
        theirs = transformers.AutoConfig.for_model(model.config["model_type"])
        plain = {key: value for key, value in model.defaults.items() if not callable(value)}
        for key, default in model.defaults.items():
            assert (default(plain) if callable(default) else default) == meaning(theirs, key), key


def test_files_that_are_not_read_do_not_count(tmp_path: Path) -> None:
    saved(SMALL, tmp_path)
    digest = weights_digest(str(tmp_path))
    single_beside_stale_shards(tmp_path)
    assert weights_digest(str(tmp_path)) == digest
    shards_beside_stale_ones(tmp_path)
    with_stale = weights_digest(str(tmp_path))
    for file in tmp_path.glob("*-of-00003.safetensors"):
        file.unlink()
    assert weights_digest(str(tmp_path)) == with_stale


# A training starts from the weights of a checkpoint, to the bit, on any stages, and leaves one.

UNTIED = replace(SMALL, tied_embeddings=False)
RECIPES_OF_START = {"llama": SMALL, "untied": UNTIED, "moe": MOE, "hybrid": HYBRID}


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


@pytest.mark.parametrize("name", RECIPES_OF_START)
def test_what_was_exported_is_loaded(name: str, tmp_path: Path) -> None:
    recipe = RECIPES_OF_START[name]
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
    words = [word for word in small_sweep.SMALL if word.startswith("model.")]
    node = compose(words)["model"]
    node.pop("_target_")
    exported(type(SMALL)(**node), tmp_path)
    return tmp_path / "final"


def test_a_trial_starts_there_and_its_id_has_the_weights(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "moved")
    configs = [
        small_sweep.config(tmp_path, *words)
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
    given = small_sweep.overrides(tmp_path, f"from_pretrained={word}")
    assert says in refused(lambda: trainer(given))


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
