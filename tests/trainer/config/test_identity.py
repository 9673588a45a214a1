"""An id names values: where a class lives and what it is called do not count, its source does."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from pipegap.analysis.table.rows import row
from pipegap.sweeps.plan.devices import shape
from pipegap.trainer import lr
from pipegap.trainer.__main__ import main
from pipegap.trainer.base import build
from pipegap.trainer.base.build import label, locate, published
from pipegap.trainer.base.former import YOUNGER
from pipegap.trainer.base.places import CODE_ROOT, CONF
from pipegap.trainer.config import identity
from pipegap.trainer.config import identity as module
from pipegap.trainer.config.compose import Composer, compose
from pipegap.trainer.config.identity import (
    GROUPS,
    code_version,
    is_choice,
    names,
    sources,
    trial_id,
    version_of,
    yamls,
)
from pipegap.trainer.config.plan import Planner, plan_trial
from pipegap.trainer.config.schema import validate
from pipegap.trainer.trial import run_trial
from tests.support import small_sweep
from tests.support.choices import words_of
from tests.support.own_files import as_in_a_new_process

OWN = """
from pipegap.trainer.lr import Factor, Share
def flat(num_updates: int, *, warmup: Share) -> Factor:
    return lambda update: {factor}
"""
OWN_WORDS = ("lr_schedule=constant", "lr_schedule._target_=own_schedule.flat")


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address at which the cosine lives, after two moves."""
    home = ModuleType("pipegap.trainer.moved")
    home.cosine = lr.cosine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pipegap.trainer.moved", home)
    monkeypatch.delattr(lr, "cosine")
    for address in ("trainer.lr.cosine", "trainer.meanwhile.cosine"):
        monkeypatch.setitem(build.MOVED, address, "trainer.moved.cosine")
    yield "trainer.moved.cosine"
    published.cache_clear()


def test_an_id_does_not_depend_on_where_a_class_lives(moved: str) -> None:
    expected = compose([])
    assert locate(expected["lr_schedule"]["_target_"]) is locate(moved)
    for address in (moved, "trainer.meanwhile.cosine", "trainer.lr.cosine"):
        config = compose([f"lr_schedule._target_={address}"])
        assert config == expected
        assert trial_id(config, "d") == trial_id(expected, "d")
        assert label({"_target_": address}) == "cosine"
    assert expected["lr_schedule"]["_target_"] == "trainer.lr.cosine"


def test_a_real_address_is_recorded_as_the_published_one() -> None:
    for first, now in build.MOVED.items():
        assert published(now) == published(first) == first
        assert locate(now) is locate(first)


def test_two_names_of_the_same_values_are_one_trial() -> None:
    config = compose([])
    renamed = config | {"choices": config["choices"] | {"model": "mine"}}
    assert trial_id(renamed, "d") == trial_id(config, "d")


def write(folder: Path, factor: float) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "own_schedule.py").write_text(OWN.format(factor=factor))
    return folder


@contextmanager
def own(folder: Path, factor: float) -> Iterator[None]:
    """What is in a process that has imported no other own_schedule."""
    identity._source_digest.cache_clear()
    with as_in_a_new_process():
        sys.path.insert(0, str(write(folder, factor)))
        yield
    identity._source_digest.cache_clear()


def test_the_source_of_ones_own_class_is_part_of_the_id(tmp_path: Path) -> None:
    ids = []
    for name, factor in {"here": 1.0, "there": 1.0, "changed": 0.5}.items():
        with own(tmp_path / name, factor):
            ids.append(trial_id(compose(OWN_WORDS), "d"))
    here, there, changed = ids
    assert here == there != changed


def test_a_result_tells_the_sources_of_its_id(tmp_path: Path) -> None:
    with own(tmp_path / "own", 1.0):
        config = small_sweep.config(tmp_path, *OWN_WORDS, "num_updates=2")
        result = run_trial(config)
        assert [*result["sources"]] == ["lr_schedule"]
        assert result["sources"] == sources(config)
        assert result["trial_id"] == plan_trial(config).trial_id == Planner()(config).trial_id
    assert run_trial(small_sweep.config(tmp_path, "num_updates=2"))["sources"] == {}


def test_a_class_counts_by_the_module_that_names_it_and_the_one_that_defines_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)

    def digest(package: str, of_name: str, of_definition: str) -> Any:
        folder = tmp_path / package
        folder.mkdir()
        (folder / "__init__.py").write_text(f"from .inner import f\n{of_name}")
        (folder / "inner.py").write_text(f"def f():\n  return {of_definition}\n")
        return sources({"model": {"_target_": f"{package}.f"}})["model"]

    first = digest("one", "", "1")
    assert digest("two", "", "1") == first
    assert len({first, digest("three", "", "2"), digest("four", "x = 1", "1")}) == 3


@pytest.mark.parametrize("address", ["math.sqrt", "builtins.dict", "trainer.lr.cosine"])
def test_code_without_a_source_and_that_of_the_package_count_by_their_address(address: str) -> None:
    assert sources({"model": {"_target_": address}}) == {}


@pytest.mark.skipif(not (CODE_ROOT / ".git").exists(), reason="needs a checkout with git")
def test_a_checkout_names_its_commit() -> None:
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=CODE_ROOT, check=True, capture_output=True, text=True
    )
    assert str(code_version()).removesuffix("-dirty") == head.stdout.strip()


def test_a_copy_without_git_names_the_commit_that_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other copies of the package may be installed: what they are says nothing of this one."""
    monkeypatch.setattr(identity, "__file__", str(tmp_path / "trainer" / "config" / "identity.py"))
    monkeypatch.setattr(identity, "CODE_ROOT", tmp_path)
    (tmp_path / "trainer" / "config").mkdir(parents=True)
    monkeypatch.delenv("PIPEGAP_COMMIT", raising=False)
    assert code_version() is None
    monkeypatch.setenv("PIPEGAP_COMMIT", "abc")
    assert code_version() == "abc"


CHANGED = {
    "diagnostics": 5,
    "eval_tokens": 64,
    "eval_dtype": "bfloat16",
    "deterministic": False,
    "model.loss_chunk": 64,
    "pipeline.slack": True,
    "pipeline.recompute": True,
    "optimizer.orthogonalisation": "polar_express",
    "optimizer.cautious_decay": True,
}
DELAYED = ["pipeline=pipedream_2bw"]
HAVE = {
    "pipeline.recompute": ["pipeline=paci"],
    "optimizer.orthogonalisation": ["optimizer=muon"],
    "optimizer.cautious_decay": ["optimizer=muon"],
    "data.end_of_document": ["data=text", "data.path=a.txt"],
}
"""Key → words of a config that has it, if DELAYED has not."""


def without(config: dict[str, Any], key: str, **changed: Any) -> dict[str, Any]:
    """The config of older code, which did not know the key; or with the key `changed`."""
    group, _, last = key.rpartition(".")
    if group:
        return {**config, group: without(config[group], last, **changed)}
    return {k: v for k, v in config.items() if k != key} | changed


def changed(config: dict[str, Any], key: str) -> dict[str, Any]:
    return without(config, key, **{key.rpartition(".")[2]: CHANGED[key]})


@pytest.mark.parametrize("key", YOUNGER)
def test_a_config_without_the_key_is_the_same_trial(key: str) -> None:
    config = compose(HAVE.get(key, DELAYED))
    older = without(config, key)
    assert trial_id(older, "d") == trial_id(config, "d")
    assert shape(older) == shape(config)
    assert row("t", older, {}, 0) == row("t", config, {}, 0)


@pytest.mark.parametrize("key", CHANGED)
def test_another_value_is_another_trial(key: str) -> None:
    config = compose(HAVE.get(key, DELAYED))
    assert trial_id(changed(config, key), "d") != trial_id(config, "d")


@pytest.mark.parametrize("key", ["eval_dtype", "deterministic", "model.loss_chunk"])
def test_trials_that_differ_in_it_are_not_compared(key: str) -> None:
    config = compose(DELAYED)
    one, other = (row("t", c, {}, 0) for c in (config, changed(config, key)))
    assert one["point"] != other["point"]


def test_a_config_of_before_can_be_run() -> None:
    config = compose(DELAYED)
    older = config
    for key in ("eval_dtype", "deterministic", "model.loss_chunk", "pipeline.slack"):
        older = without(older, key)
    assert older != config
    assert validate(older) == config


# What stores and people's own configs depend on stays: addresses of choices, and ids of trials.

FROZEN = [
    json.loads(line) for line in Path(__file__).with_name("frozen.jsonl").read_text().splitlines()
]
"""Words, the id of their trial on the wiki text, and of its config the whole, for no word, or the
node of what the word chooses; of a scale only the id."""

WIKI = "587fbfc6c2e2707943a6e2eb44c75a6467f161234b5e6fe0bcfea79f4f9dbe1e"
"""Hash of the prepared wiki text, of which the published trials are."""
TINY = (
    *("model=tiny", "data=wiki", "batch_size=16", "seq_len=128", "eval_every=100"),
    "optimizer.lr=0.004",
)
DELAY = "pipeline=pipedream_2bw"
FEEDBACK = "correction=error_feedback"
STAGES = (DELAY, "pipeline.num_stages=2", "pipeline.num_microbatches=2")
IDS = {
    "48a0eba182ade3a2": ("num_updates=400",),  # tiny_trials.csv
    "a749e5e20d48f749": ("num_updates=400", "optimizer=muon", "seed=2"),  # tiny_trials.csv
    "ed88bdaa62586840": ("num_updates=400", "optimizer=muon", DELAY, "seed=1"),  # tiny_trials.csv
    "2c935ac5ff7c76a9": ("num_updates=400", DELAY, FEEDBACK, "seed=2"),  # tiny_trials.csv
    "373895ca2525fcb3": (  # advice_trials.csv
        *("num_updates=450", "optimizer=muon", DELAY, FEEDBACK, "seed=1"),
    ),
    "02e516d2f023b452": (  # coefficient_trials.csv
        *("num_updates=250", "optimizer=muon", DELAY, FEEDBACK, "seed=1"),
        "correction.coefficient=0.5",
    ),
    "0c6355039820b09a": (  # corrections_trials.csv
        *("num_updates=400", DELAY, "correction=error_feedback_gradient", "seed=2"),
    ),
    "f62bce93e269e1ff": (  # corrections_trials.csv
        *("num_updates=400", DELAY, "correction=taylor", "correction.coefficient=100", "seed=1"),
        "diagnostics=50",
    ),
    "cbb6f96fdb5a0515": (  # momentum_trials.csv
        *("num_updates=250", "optimizer=muon", "optimizer.momentum=0.99", DELAY),
    ),
    "fff215739d37abbf": (  # batch_size_trials.csv
        *("num_updates=400", "optimizer.lr=0.016", "seed=1"),
    ),
    "087961bd10a7eefe": (  # synchronous_start_trials.csv
        *("num_updates=250", "optimizer=mars", "optimizer.lr=0.008", DELAY, "seed=2"),
        "pipeline.synchronous_start=0.1",
    ),
    "fb295acf0c954f2c": (  # optimizers_trials.csv
        *("num_updates=250", "optimizer=nadamw", "optimizer.lr=0.008", DELAY, FEEDBACK, "seed=2"),
    ),
    "096fc16fdcd12997": ("num_updates=400", "compile=true"),
    "36309d1dc256d1f9": ("num_updates=400", "compile=update"),  # COMPILED_FIXES 2
    "20f887f7b25780bd": (
        "num_updates=null",
        "tokens_per_parameter=20",
        "model=smollm2_135m",
        DELAY,
    ),
    "c57e51cd353692c7": (
        *("num_updates=100", "pipeline=constant_delay", "pipeline.delay=3", "diagnostics=10"),
        *("correction=weight_prediction", "data=gcide", "lr_schedule=wsd"),
    ),
}


@pytest.mark.parametrize("frozen", FROZEN, ids=lambda frozen: " ".join(frozen["words"]) or "none")
def test_a_choice_stays_what_it_was(frozen: Any) -> None:
    """Also a new place of its class leaves the address that every config.json of it holds."""
    words = list(chain.from_iterable(map(in_full, frozen["words"])))
    config = compose(words)
    assert {key: config[key] for key in frozen["config"]} == frozen["config"]
    assert trial_id(config, WIKI) == frozen["id"]
    for key, node in frozen["config"].items():
        if is_choice(node):
            chosen = yaml.safe_load((CONF / key / f"{config['choices'][key]}.yaml").read_text())
            assert published(chosen["_target_"]) == node["_target_"]


def in_full(word: str) -> list[str]:
    """The words of a scale; any other word as it is."""
    group, _, name = word.partition("=")
    scale = CONF / "scale" / f"{name}.yaml"
    return yaml.safe_load(scale.read_text())["base"] if group == "scale" else [word]


def test_the_front_page_keeps_its_table() -> None:
    front = (CODE_ROOT / "README.md").read_text()
    of_gaps = front.partition("<!-- table -->\n")[2].partition("\n<!-- end -->")[0]
    table = sorted(of_gaps.splitlines())  # whatever the order of its rows
    digest = hashlib.sha256("\n".join(table).encode()).hexdigest()
    assert digest[:16] == "e767113762628e18", "\n".join(table)


@pytest.mark.parametrize(
    ("words", "version"),
    [
        ((), 2),
        (("compile=update",), 4),
        (("model.tied_embeddings=false",), 3),
        (("model.tied_embeddings=false", "compile=update"), 5),
        (("model=tiny_hybrid",), 2),
        (("clip_scope=stage",), 2),
        (("clip_scope=stage", *STAGES), 3),
        (("clip_scope=stage", "pipeline=wpipe"), 3),
        (("clip_scope=stage", *STAGES, "clip_norm=null"), 2),
        (("clip_scope=stage", *STAGES, "model.tied_embeddings=false"), 3),
        (STAGES, 2),
    ],
)
def test_a_fix_of_some_trials_renames_those_alone(words: tuple[str, ...], version: int) -> None:
    """HEAD_FIXES is 1, TIED_CLIP_FIXES is 1, and one rank of WPipe has two stages."""
    given = {word.partition("=")[0]: word for word in (*TINY, "num_updates=9", *words)}
    assert version_of(compose([*given.values()])) == version


def test_layers_is_the_name_of_what_compile_true_was() -> None:
    assert compose([*TINY, "compile=layers"]) == compose([*TINY, "compile=true"])


@pytest.mark.parametrize("expected", IDS)
def test_the_id_of_a_trial_stays(expected: str) -> None:
    words = {word.split("=")[0]: word for word in (*TINY, *IDS[expected])}
    assert trial_id(compose(list(words.values())), WIKI) == expected


# A config carries the names that people chose; one made before that gets them by one rule.

CHOICES = [(group, path.stem) for group in GROUPS for path in yamls(group)]
CHOSEN = {
    **{"model": "tiny", "data": "gcide", "optimizer": "muon", "pipeline": "pipedream_2bw"},
    **{"correction": "error_feedback", "lr_schedule": "wsd"},
}
WORDS = [f"{group}={name}" for group, name in CHOSEN.items()]


def before(config: dict[str, Any]) -> dict[str, Any]:
    """The config as it was recorded when there were no names."""
    return {key: value for key, value in config.items() if key != "choices"}


def test_a_config_carries_the_names_that_were_chosen() -> None:
    assert compose(WORDS)["choices"] == CHOSEN
    assert Composer()([*WORDS, "seed=2", "optimizer.lr=0.5"])["choices"] == CHOSEN


@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_a_config_made_before_gets_its_names_and_keeps_its_id(group: str, name: str) -> None:
    config = compose(words_of(group, name))
    assert config["choices"][group] == name
    assert validate(before(config)) == config
    assert trial_id(before(config), "d") == trial_id(config, "d")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("model.num_layers=3", "tiny"),  # one value of tiny's differs, and one of tiny_deep's
        ("model.hidden_size=48", "tiny"),
        ("model.num_layers=8", "tiny_deep"),
        ("data.path=/shared/data/gcide", "gcide"),
        ("data.path=/shared/data/gcide/", "gcide"),
        ("data.path=/scratch/mine", "shards"),  # no value of any
        ("optimizer.lr=0.5", "adamw"),
    ],
)
def test_the_name_of_a_choice_made_before_is_that_of_the_likest_yaml(word: str, name: str) -> None:
    group = word.partition(".")[0]
    assert names(before(compose([word])))[group] == name


def test_of_equals_the_one_with_the_fewest_other_keys_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "optimizer").mkdir()
    for name, keys in {"a": "x: 1\ny: 2", "b": "x: 1\nz: 2", "c": "x: 1", "d": "x: 1"}.items():
        (tmp_path / "optimizer" / f"{name}.yaml").write_text(f"_target_: my.sgd\n{keys}")
    monkeypatch.setattr(module, "CONF", tmp_path)
    for cached in (module._alike, module._address, module._presets):
        monkeypatch.setattr(module, cached.__name__, cached.__wrapped__)

    def name_of(**node: Any) -> str:
        return names({"optimizer": {"_target_": "my.sgd", **node}})["optimizer"]

    assert name_of(x=1, w=0) == "c"
    assert name_of(x=1, z=2, w=0) == "b"
    assert name_of(x=3) == "sgd"
    assert names({"optimizer": {"_target_": "my.other", "x": 1}}) == {"optimizer": "other"}


def test_a_class_set_by_hand_has_not_the_name_of_the_yaml() -> None:
    words = ["lr_schedule=constant", "lr_schedule._target_=trainer.lr.inverse_sqrt"]
    assert compose(words)["choices"]["lr_schedule"] == "inverse_sqrt"
    mine = compose([]) | {"choices": {**CHOSEN, "model": "mine"}}
    assert validate(mine)["choices"] == {**compose([])["choices"], "model": "mine"} | {
        "data": "gcide"
    }


@pytest.mark.parametrize("is_old", [False, True])
def test_a_recorded_config_shows_its_names(
    is_old: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = compose([*small_sweep.SMALL, *WORDS])
    path = tmp_path / "config.json"
    path.write_text(json.dumps(before(config) if is_old else config))
    assert main(["--cfg", "--config", str(path)]) == 0
    assert json.loads(capsys.readouterr().out) == config


@pytest.mark.parametrize("group", ["optimizer", "pipeline", "correction", "lr_schedule"])
def test_a_choice_of_ours_is_known_by_one_name(group: str) -> None:
    """Also where several classes lie in one file: no two YAMLs have one address or one arm."""
    choices = module.declared(group)
    assert {name: module.kind(group, choice.usual) for name, choice in choices.items()} == {
        name: name for name in choices
    }
    assert len({choice.arm.partition("(")[0] for choice in choices.values()}) == len(choices)
