"""docs/code.md: its commands run, the example equals transformers, and the folder's code counts."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from pipegap.sweeps.cluster.package import OWN_CODE, Own, sent_with
from pipegap.trainer.__main__ import main as trainer
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.compose import compose
from pipegap.trainer.config.identity import trial_id
from pipegap.trainer.models.export import save_final, start_from
from pipegap.trainer.trial import run_trial
from tests.support import small
from tests.support.markdown import ROOT, shell_lines
from tests.support.own_code import as_in_a_new_process
from tests.support.refusals import Refused, name_of

DOCUMENT = ROOT / "docs" / "code.md"
EXAMPLE = ROOT / "examples" / "gpt2"
TRIALS = [words[2:] for words in shell_lines(DOCUMENT) if words[:2] == ["pipegap", "trial"]]
KEPT = ("batch_size", "seq_len", "num_updates", "eval_every", "checkpoint_every")


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with as_in_a_new_process():
        yield


def config(folder: Path, words: list[str]) -> dict[str, Any]:
    """The config of a command's words, changed so that the trial takes a second."""
    sizes = [word for word in small.SMALL if word.startswith(KEPT)]
    paths = [f"data.path={small.corpus(folder)}", f"results={folder / 'results'}"]
    return compose([*words, *sizes, *paths])


def test_the_true_pipeline_trains_it_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    [pipelined] = [words for words in TRIALS if "runner=pipelined" in words]
    emulated = [word for word in pipelined if word != "runner=pipelined"]
    assert len(TRIALS) == 2
    found = [
        run_trial(config(tmp_path / name, words))
        for name, words in (("one", emulated), ("two", pipelined))
    ]
    assert [result["status"] for result in found] == ["completed"] * 2
    assert found[0]["final_val_loss"] == found[1]["final_val_loss"]
    assert found[0]["delays"] == [1, 1]


def test_it_equals_transformers(tmp_path: Path) -> None:
    import transformers

    sys.path.append(str(EXAMPLE))
    from gpt2 import GPT2  # type: ignore[import-not-found]

    recipe = GPT2(vocab_size=50, hidden_size=24, num_layers=2, num_heads=3, num_positions=16)
    ours = recipe.stage(0, recipe.split(1, 12))
    recipe.initialise(ours, seed=3)
    with torch.no_grad():
        for weight in ours.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    weights = dict(ours.named_parameters())
    assert recipe.num_parameters == sum(weight.numel() for weight in weights.values())
    save_final({name: w.detach() for name, w in weights.items()}, recipe, tmp_path)
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "final", output_loading_info=True, attn_implementation="eager"
    )
    assert not report["unexpected_keys"]
    tokens = torch.randint(50, (2, 13))
    inputs, targets = tokens[:, :-1], tokens[:, 1:].flatten()
    logits = ours(inputs), theirs.eval()(inputs).logits
    torch.testing.assert_close(*logits, rtol=0, atol=1e-5)
    for values in logits:
        F.cross_entropy(values.flatten(0, 1), targets).backward()
    mine = recipe.pretrained({name: w.grad for name, w in weights.items()}).tensors
    for name, weight in theirs.named_parameters():
        torch.testing.assert_close(mine[name], weight.grad, rtol=0, atol=1e-5)


def test_it_starts_from_a_checkpoint_as_the_hub_has_it(tmp_path: Path) -> None:
    """Without a prefix, with masks beside the weights, and with the embedding twice."""
    import transformers

    sys.path.append(str(EXAMPLE))
    from gpt2 import GPT2

    sizes = {"vocab_size": 50, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 16}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {name.removeprefix("transformer."): w for name, w in tensors.items()}
    tensors |= {"h.0.attn.bias": torch.ones(1), "lm_head.weight": tensors["wte.weight"].clone()}
    save_file(tensors, tmp_path / "model.safetensors")
    recipe = GPT2(vocab_size=50, hidden_size=24, num_layers=2, num_heads=3, num_positions=16)
    ours = recipe.stage(0, recipe.split(1, 12))
    start_from(str(tmp_path))(recipe, ours, 0)
    tokens = torch.randint(50, (2, 12))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=0, atol=1e-5)
    config = json.loads((tmp_path / "config.json").read_text())
    default = transformers.GPT2Config()
    for key, value in recipe.pretrained({}).defaults.items():
        assert getattr(default, key) == value
    (tmp_path / "config.json").write_text(json.dumps(config | {"activation_function": "relu"}))
    with pytest.raises(BadInput, match="has activation_function=relu, this model has gelu_new"):
        start_from(str(tmp_path))(recipe, ours, 0)


def id_with(folder: Path) -> str:
    """The id of a trial with the code of a folder alone."""
    with as_in_a_new_process():
        return trial_id(compose([f"code={folder}", "model=gpt2_tiny"]), "d")


def test_a_change_of_the_code_makes_another_trial(tmp_path: Path) -> None:
    for name in ("a", "b", "edited", "helper"):
        shutil.copytree(EXAMPLE, tmp_path / name)
    with (tmp_path / "edited" / "gpt2.py").open("a") as file:
        file.write("# edited\n")
    (tmp_path / "helper" / "helper.py").write_text("x = 1\n")
    names = ("a", "b", "edited", "helper")
    a, b, edited, helper = (id_with(tmp_path / name) for name in names)
    assert a == b
    assert len({a, edited, helper}) == 3
    plain = trial_id(compose([]), "d")
    assert trial_id(compose([f"code={tmp_path / 'a'}"]), "d") == plain


BASE = """
from __future__ import annotations
from dataclasses import dataclass
from pipegap.trainer.base.ranges import Rows
from pipegap.trainer.models.llama import Llama
@dataclass(frozen=True, kw_only=True)
class Mine(Llama):
    window: Rows = 64
"""
BAD = {
    "none": "code=none: must be a folder that is there",
    "empty": "code=empty: must be a folder of Python files",
    "mine model._target_=windowed.Mine +model.window=0": "model.window=0: must be greater than",
    "mine model._target_=windowed.Nothing": "must be importable",
    "fails model._target_=fails.Model": "must be importable (KeyError: 'a', ",
    "syntax model._target_=syntax.Model": "must be importable (SyntaxError: ",
    "names model._target_=names.Model": "must be importable (name 'Roows' is not defined)",
    "mine model=small": "model._target_=windowed.Small: must make a Recipe (pipegap/trainer/mod",
    "shadow model._target_=numpy.Model": "code=shadow: has numpy.py, but Python finds ",
}
FILES = {
    "mine/windowed.py": f"{BASE}class Small:\n    def __init__(self, *, width: Rows): ...\n",
    "mine/model/small.yaml": "_target_: windowed.Small\nwidth: 3\n",
    "fails/fails.py": "x = 1\ny = {}['a']\n",
    "syntax/syntax.py": "def\n",
    "names/names.py": "from __future__ import annotations\n"
    "class Model:\n    def __init__(self, *, width: Roows): ...\n",
    "shadow/numpy.py": "class Model: ...\n",
}


def write_files(folder: Path) -> None:
    (folder / "empty").mkdir()
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(content)


@pytest.mark.parametrize("words", BAD, ids=name_of)
def test_bad_code_is_one_line(
    words: str, refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write_files(tmp_path)
    said = refused(lambda: trainer(f"code={words}".split()))
    assert BAD[words] in said
    if "KeyError" in said:
        assert "fails.py:2" in said


def test_defaults_of_a_subclass_count(tmp_path: Path) -> None:
    """One key more than Llama's, with a string annotation and a default."""
    write_files(tmp_path)
    words = [f"code={tmp_path / 'mine'}", "model._target_=windowed.Mine"]
    assert compose(words)["model"]["window"] == 64
    assert compose([*words, "+model.window=8"])["model"]["window"] == 8


def test_a_job_gets_the_code(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "mine")
    for name in ("weights.pt", ".hidden/x.py"):
        (tmp_path / "mine" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "mine" / name).touch()
    with sent_with(Own(str(tmp_path / "mine"))) as root:
        assert {path.name for path in root.iterdir()} == {"pipegap", OWN_CODE}
        sent = {str(p.relative_to(root / OWN_CODE)) for p in (root / OWN_CODE).rglob("*.*")}
        assert sent == {"gpt2.py", "model/gpt2_tiny.yaml"}
        words = [f"code={OWN_CODE}", "model=gpt2_tiny", "--cfg"]
        command = [sys.executable, "-m", "pipegap", "trial", *words]
        subprocess.run(command, cwd=root, check=True, capture_output=True)
