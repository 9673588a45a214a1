"""docs/code.md: its commands run, the example equals transformers, and the folder's code counts."""

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from pipegap.analysis import gaps
from pipegap.analysis.__main__ import main as analysis
from pipegap.analysis.table.load import load
from pipegap.sweeps.__main__ import main as sweeps
from pipegap.sweeps.cluster.jobs import OWN_CODE, Own, require_shared, sent_with
from pipegap.sweeps.plan.devices import _kind as pace_kind
from pipegap.sweeps.request.command_line import parse_request
from pipegap.trainer.__main__ import main as trainer
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.compose import Composer, compose
from pipegap.trainer.config.identity import trial_id
from pipegap.trainer.models.export import save_final, start_from
from pipegap.trainer.trial import run_trial
from tests.support import small_sweep
from tests.support.markdown import ROOT, shell_lines, write_files
from tests.support.own_files import as_in_a_new_process
from tests.support.pages import with_figures
from tests.support.processes import Refused, name_of
from tests.support.synthetic_store import write_arms

DOCUMENT = ROOT / "docs" / "code.md"
EXAMPLE = ROOT / "examples" / "gpt2"
TRIALS = [words[2:] for words in shell_lines(DOCUMENT) if words[:2] == ["pipegap", "trial"]]
KEPT = ("batch_size", "seq_len", "num_updates", "eval_every", "checkpoint_every")


@pytest.fixture
def alone() -> Iterator[None]:
    with as_in_a_new_process():
        yield


def config(folder: Path, words: list[str]) -> dict[str, Any]:
    """The config of a command's words, changed so that the trial takes a second."""
    sizes = [word for word in small_sweep.SMALL if word.startswith(KEPT)]
    paths = [f"data.path={small_sweep.corpus(folder)}", f"results={folder / 'results'}"]
    return compose([*words, *sizes, *paths])


@pytest.mark.usefixtures("alone")
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


@pytest.mark.usefixtures("alone")
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


@pytest.mark.usefixtures("alone")
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


@pytest.mark.usefixtures("alone")
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


def write_files_of_code(folder: Path) -> None:
    (folder / "empty").mkdir()
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(content)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("words", BAD, ids=name_of)
def test_bad_code_is_one_line(
    words: str, refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write_files_of_code(tmp_path)
    said = refused(lambda: trainer(f"code={words}".split()))
    assert BAD[words] in said
    if "KeyError" in said:
        assert "fails.py:2" in said


@pytest.mark.usefixtures("alone")
def test_defaults_of_a_subclass_count(tmp_path: Path) -> None:
    """One key more than Llama's, with a string annotation and a default."""
    write_files_of_code(tmp_path)
    words = [f"code={tmp_path / 'mine'}", "model._target_=windowed.Mine"]
    assert compose(words)["model"]["window"] == 64
    assert compose([*words, "+model.window=8"])["model"]["window"] == 8


@pytest.mark.usefixtures("alone")
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


# A part of one's own may lack every key that ours have: it trains, and all that read it go on.

SOURCE = """
from pipegap.trainer.base.ranges import Few
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.data.shards import Prepared
from pipegap.trainer.models.llama import Llama
from pipegap.trainer.schedules.recipes import pipedream_2bw
import torch

class Text:
    def __init__(self):
        self._prepared = Prepared(path={corpus!r})
    hash = property(lambda self: self._prepared.hash)
    num_validation_tokens = property(lambda self: self._prepared.num_validation_tokens)
    def open(self):
        return self._prepared.open()

def model():
    return Llama(vocab_size=257, hidden_size=16, num_layers=2, num_heads=2, num_kv_heads=1,
        intermediate_size=16, rope_theta=1e4, rms_norm_eps=1e-5, initializer_range=0.1,
        tied_embeddings=True, activation_checkpointing=False)

def optimizer(parameters):
    return torch.optim.SGD([weight for _, weight in parameters], lr=0.1)

def pipeline(num_updates, *, num_stages: Few, num_microbatches: Few):
    return pipedream_2bw(num_updates, num_stages=num_stages, num_microbatches=num_microbatches,
        synchronous_start=0, synchronous_cooldown=0)

class Correction(NoCorrection):
    needs_update = True
    def apply(self, weights, update, delays):
        for weight, step, delay in zip(weights, update, delays, strict=True):
            if delay > 0:
                weight.add_(step, alpha=0.5)

def lr_schedule(num_updates):
    return lambda update: 1.0
"""
TARGETS = {
    **{name: name for name in ("model", "optimizer", "pipeline", "lr_schedule")},
    **{"data": "Text", "correction": "Correction"},
}
USUAL = {
    "data": ["data.path={corpus}"],
    "model": ["model.hidden_size=24", "model.num_layers=2", "model.intermediate_size=16"],
}
TWO = ["pipeline.num_stages=2", "pipeline.num_microbatches=2"]
WORDS = ["num_updates=2", "eval_every=2", "batch_size=2", "seq_len=16", "checkpoint_every=9"]


@pytest.fixture
def code(tmp_path: Path) -> Iterator[Path]:
    """A folder of code with a part of each group, which has no key but those it must have."""
    folder, corpus = tmp_path / "own", small_sweep.corpus(tmp_path)
    folder.mkdir()
    (folder / "own_parts.py").write_text(SOURCE.format(corpus=str(corpus)))
    for group, target in TARGETS.items():
        (folder / group).mkdir()
        sizes = "num_stages: 1\nnum_microbatches: 1\n" if group == "pipeline" else ""
        (folder / group / "own.yaml").write_text(f"_target_: own_parts.{target}\n{sizes}")
    before = [*sys.path]
    yield folder
    sys.path[:] = before
    sys.modules.pop("own_parts", None)


ONE = [pytest.param([group], marks=pytest.mark.slow) for group in TARGETS]


@pytest.mark.parametrize("own", [[*TARGETS], *ONE], ids="+".join)
def test_it_trains_and_is_priced_reported_and_advised(
    own: list[str], code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = [word for group, words in USUAL.items() if group not in own for word in words]
    chosen = [f"{group}=own" for group in own if group not in ("pipeline", "correction")]
    base = [*WORDS, *chosen, *(word.format(corpus=tmp_path / "corpus") for word in usual)]
    late = "pipeline=own" if "pipeline" in own else "pipeline=pipedream_2bw"
    better = "correction=own" if "correction" in own else "correction=error_feedback"
    arms = {"sync": ["pipeline=sync"], "delay": [late], "better": [late, better]}
    arms = {arm: [*words, *TWO] for arm, words in arms.items()}
    store, common = tmp_path / "results", [f"code={code}", f"results={tmp_path / 'results'}"]
    sweep = {"grid": {}, "arms": arms, "seeds": [0, 1]}
    (tmp_path / "mine.yaml").write_text(json.dumps(sweep))
    asked = [f"sweep={tmp_path / 'mine.yaml'}", "scale=micro", *base, *common]

    assert sweeps([*asked, "dry_run=true"]) == 0
    assert "0 done, 6 to do" in capsys.readouterr().out
    for words in arms.values():
        for seed in (0, 1):
            assert trainer([*base, *words, *common, f"seed={seed}"]) == 0
    table = load(store)
    assert table["status"].eq("completed").all()
    assert table["data.path"].notna().all()
    assert sweeps(["status", *common[1:]]) == 0
    with with_figures():
        assert analysis([*common[1:], f"out={tmp_path / 'report'}"]) == 0
    assert "own" in (tmp_path / "report" / "index.html").read_text()
    asks_of_2bw = ["advise", "stages=2", "microbatches=2", *common[1:]]
    assert analysis(asks_of_2bw) == (2 if "pipeline" in own else 0)


def test_data_without_a_path_is_named(
    code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"code={code}", "data=own", "model.vocab_size=99", f"results={tmp_path / 'r'}"]
    assert trainer(words) == 2
    assert "must be that of the data, 257" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "corpus")
    assert sweeps(["sweep=main", "scale=micro", "dry_run=true", *words[:2], words[3]]) == 0
    assert "data      own is not prepared here" in capsys.readouterr().out


def test_a_job_asks_for_the_paths_that_data_has(code: Path) -> None:
    words = ["sweep=main", "results=/shared/results", f"code={code}"]
    require_shared(parse_request([*words, "data=own"]))
    for other in ([], ["data=wiki"]):
        with pytest.raises(BadInput, match=r"data\.path=: must be given as an absolute path"):
            require_shared(parse_request([*words, *other]))


def test_a_scales_word_for_a_key_that_a_choice_lacks_has_no_effect(code: Path) -> None:
    rate, chosen = "optimizer.lr=0.004", [f"code={code}", "optimizer=own"]
    of_scale = Composer(if_there=[rate, "batch_sizes=3"])
    assert "lr" not in of_scale([*chosen, rate])["optimizer"]
    assert of_scale([rate])["optimizer"]["lr"] == 0.004
    for word, composer in ((rate, Composer()), ("batch_sizes=3", of_scale)):
        with pytest.raises(BadInput, match="must be a key of the config"):
            composer([*chosen, word])


TWO_IN_ONE = """
from pipegap.trainer.base.ranges import Few
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.schedules.recipes import constant_delay
import torch

def _of(scale):
    def optimizer(parameters):
        return torch.optim.SGD([weight for _, weight in parameters], lr=scale)
    return optimizer

first_optimizer, second_optimizer = _of(0.1), _of(0.2)

def first_pipeline(num_updates, *, num_stages: Few, num_microbatches: Few, delay: Few = 1):
    return constant_delay(num_updates, delay=delay, num_stages=num_stages,
        num_microbatches=num_microbatches, synchronous_start=0, synchronous_cooldown=0)

def second_pipeline(num_updates, *, num_stages: Few, num_microbatches: Few):
    return first_pipeline(num_updates, num_stages=num_stages, num_microbatches=num_microbatches,
        delay=2)

class FirstCorrection(NoCorrection):
    share = 0.5
    def lr_factor(self, update, delay):
        return self.share if delay else 1.0

class SecondCorrection(FirstCorrection):
    share = 0.1

class FirstTracker:
    def __init__(self, about, *, path: str):
        self.path, self.line = path, f"{type(self).__name__} {about.arm}"
    def log(self, row):
        pass
    def finish(self, outcome):
        with open(self.path, "a") as file:
            print(self.line, file=file)

class SecondTracker(FirstTracker):
    pass
"""
NUMBERS = ("first", "second")
LONGER = ["num_updates=4", "eval_every=4", *WORDS[2:]]


def test_two_of_each_kind_in_one_file_are_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They train, are priced, told apart in every table, and a tracker of one's own is chosen."""
    folder, corpus, store = tmp_path / "own", small_sweep.corpus(tmp_path), tmp_path / "results"
    folder.mkdir()
    (folder / "error_feedback.py").write_text(TWO_IN_ONE)
    for group in ("optimizer", "pipeline", "correction", "tracking"):
        (folder / group).mkdir()
        for number in NUMBERS:
            is_class = group in ("correction", "tracking")
            kind = {"tracking": "Tracker"}.get(group, group.capitalize())
            name = f"{number.capitalize()}{kind}" if is_class else f"{number}_{group}"
            keys = {
                "pipeline": "num_stages: 1\nnum_microbatches: 1\n",
                "tracking": f"path: {tmp_path / 'tracked'}\n",
            }.get(group, "")
            yaml = f"_target_: error_feedback.{name}\n{keys}"
            (folder / group / f"{number}.yaml").write_text(yaml)
    sizes = ["model.hidden_size=16", "model.num_layers=1", "model.intermediate_size=16"]
    base = [*LONGER, *sizes, "model.num_heads=2", "model.num_kv_heads=1", f"data.path={corpus}"]
    common = [f"code={folder}", f"results={store}"]
    late = {f"late_{number}": [f"pipeline={number}"] for number in NUMBERS}
    late |= {
        f"better_{number}": ["pipeline=pipedream_2bw", f"correction={number}"] for number in NUMBERS
    }
    arms = {"sync": ["pipeline=sync"], "delay": ["pipeline=pipedream_2bw"], **late}
    sweep = {"base": common[:1], "grid": {"optimizer": [*NUMBERS]}, "arms": arms, "seeds": [0]}
    (tmp_path / "mine.yaml").write_text(json.dumps(sweep))
    words = [f"sweep={tmp_path / 'mine.yaml'}", "scale=micro", *base, common[1]]
    with as_in_a_new_process():
        assert sweeps([*words, "dry_run=true"]) == 0
        assert "12 to do" in capsys.readouterr().out
        for number in NUMBERS:
            for chosen in arms.values():
                assert trainer([*base, *chosen, *common, f"optimizer={number}"]) == 0
            tracking = parse_request([*words, f"tracking={number}"]).tracking
            with tracking.of("id", "delay", {"results": str(store)}, sweeps=()) as tracker:
                tracker.log({"update": 0})
    assert (tmp_path / "tracked").read_text() == "FirstTracker delay\nSecondTracker delay\n"
    table = gaps(load(store))
    for _, of_optimizer in table.groupby("optimizer"):
        assert of_optimizer["arm"].to_list() == [
            *("delay", "delay_error_feedback.FirstCorrection"),
            *("delay_error_feedback.SecondCorrection", "error_feedback.first_pipeline(1)"),
            "error_feedback.second_pipeline",
        ]
        assert of_optimizer["n"].eq(1).all()
        assert of_optimizer["loss"].nunique() == 4, "first_pipeline is the plain delay"
    assert {*table["optimizer"]} == {*NUMBERS}
    assert table.groupby("arm")["loss"].nunique().eq(2).all()


def test_a_pace_is_of_one_optimizer_and_pipeline() -> None:
    """Two functions of one file train at two speeds."""
    kinds = {
        pace_kind({"optimizer": {"_target_": first}, "pipeline": {"_target_": second}})
        for first in ("mine.a", "mine.b")
        for second in ("mine.c", "mine.d")
    }
    assert len(kinds) == 4


# The examples of docs/extending.md work as they are printed there.

DOCUMENT_OF_EXTENDING = ROOT / "docs" / "extending.md"
TRIALS_OF_EXTENDING = [
    words[2:] for words in shell_lines(DOCUMENT_OF_EXTENDING) if words[:2] == ["pipegap", "trial"]
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with all files of the document, from which commands are run: nothing but `code=mine`
    lets Python find those in mine/."""
    write_files(DOCUMENT_OF_EXTENDING, tmp_path)
    small_sweep.corpus(tmp_path)
    monkeypatch.chdir(tmp_path)
    with as_in_a_new_process():
        yield tmp_path


def config_of_extending(folder: Path, *words: str) -> dict[str, Any]:
    """The config of a command's words, changed so that the trial takes a second."""
    sizes = [word for word in small_sweep.SMALL if not word.startswith("optimizer.")]
    paths = [f"data.path={folder / 'corpus'}", f"results={folder / 'results'}"]
    return compose([*words, *sizes, *paths])


def words_of(example: str) -> list[str]:
    [words] = [words for words in TRIALS_OF_EXTENDING if example in words]
    return words


def run(folder: Path, *words: str) -> dict[str, Any]:
    result = run_trial(config_of_extending(folder, *words))
    assert result["status"] == "completed"
    return result


def test_the_optimizer(folder: Path) -> None:
    words = words_of("optimizer=sign_descent")
    losses = [
        run(folder, *words, f"optimizer.lr={lr}")["final_val_loss"] for lr in (0.001, 0.0000001)
    ]
    assert losses[0] < losses[1] - 0.01, "it learns"
    with pytest.raises(BadInput, match="lr"):
        config_of_extending(folder, *words, "optimizer.lr=-1")


def test_the_correction(folder: Path) -> None:
    """It acts where the gradient is late and nowhere else."""
    words = [word for word in words_of("correction=smaller_steps") if ".share" not in word]
    late = words[words.index("pipeline=pipedream_2bw")]
    fresh = ["pipeline=sync" if word == late else word for word in words]
    loss = {
        (word, share): run(folder, *of, f"correction.share={share}")["final_val_loss"]
        for word, of in (("late", words), ("fresh", fresh))
        for share in (0.5, 1.0)
    }
    assert loss["fresh", 0.5] == loss["fresh", 1.0]
    assert loss["late", 0.5] != loss["late", 1.0]
    assert loss["late", 1.0] == run(folder, late)["final_val_loss"]


def test_the_schedule(folder: Path) -> None:
    assert run(folder, *words_of("pipeline=half_delayed"))["delays"] == [1, 0]
    assert "delays [1, 0]" in DOCUMENT_OF_EXTENDING.read_text()


def test_the_sweep(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_own, with_own_rates, of_file = [
        w[2:] for w in shell_lines(DOCUMENT_OF_EXTENDING) if w[:2] == ["pipegap", "sweep"]
    ]
    assert sweeps([*of_file, f"data.path={folder / 'corpus'}"]) == 0
    assert "9 asked, 9 unique" in capsys.readouterr().out
    # The main sweep with an optimizer of one's own, at the scale's rates and at those of its file.
    own_rates = "sign_descent lr 0.001, weight_decay 0.1"
    for words, are_said in ((with_own, True), (with_own_rates, False)):
        assert sweeps([*words, f"data.path={folder / 'corpus'}"]) == 0
        assert (own_rates in " ".join(capsys.readouterr().out.split())) == are_said


LOSSES: dict[str, dict[str, list[float | None]]] = {
    "adamw": {"sync": [1.70, 1.71, 1.69], "delay": [1.90, 1.92, 1.88]},
    "muon": {"sync": [1.60, 1.61, 1.59], "delay": [1.65, 1.66, 1.64]},
}


def run_script(folder: Path, name: str) -> None:
    assert ["python", name] in list(shell_lines(DOCUMENT_OF_EXTENDING))
    for optimizer, arms in LOSSES.items():
        write_arms(folder / "results", arms, optimizer=optimizer)
    runpy.run_path(name, run_name="__main__")


def test_the_claim(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_script(folder, "my_claim.py")
    assert "A delay costs Muon less than AdamW - reproduced" in capsys.readouterr().out


def test_the_figure(folder: Path) -> None:
    run_script(folder, "my_figure.py")
    shown = pd.read_csv(folder / "my_gaps.csv")
    assert sorted(shown["optimizer"]) == [*LOSSES]
    assert (folder / "my_gaps.png").stat().st_size > 1000
    assert "gap (nats per token)" in (folder / "my_gaps.svg").read_text()


def test_the_figure_says_where_it_has_nothing_to_show(folder: Path) -> None:
    """As after the trials of this page, which have no pair."""
    write_arms(folder / "results", {"sync": [1.0]})
    with pytest.raises(BadInput, match="figure=my_gaps: must have a row of data"):
        runpy.run_path("my_figure.py", run_name="__main__")
