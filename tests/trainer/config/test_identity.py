"""An id names values: where a class lives and what it is called do not count, its source does."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipegap.analysis.table.rows import row
from pipegap.sweeps.plan.pace import shape
from pipegap.trainer import lr
from pipegap.trainer.base import build
from pipegap.trainer.base.build import label, locate, published
from pipegap.trainer.base.former import YOUNGER
from pipegap.trainer.base.places import CODE_ROOT
from pipegap.trainer.config import identity
from pipegap.trainer.config.compose import compose
from pipegap.trainer.config.identity import code_version, sources, trial_id
from pipegap.trainer.config.plan import Planner, plan_trial
from pipegap.trainer.config.schema import validate
from pipegap.trainer.trial import run_trial
from tests.support import small
from tests.support.own_code import as_in_a_new_process

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
        config = small.config(tmp_path, *OWN_WORDS, "num_updates=2")
        result = run_trial(config)
        assert [*result["sources"]] == ["lr_schedule"]
        assert result["sources"] == sources(config)
        assert result["trial_id"] == plan_trial(config).trial_id == Planner()(config).trial_id
    assert run_trial(small.config(tmp_path, "num_updates=2"))["sources"] == {}


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
