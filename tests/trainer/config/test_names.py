"""A config carries the names that people chose; one made before that gets them by one rule."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipegap.trainer.__main__ import main
from pipegap.trainer.config import names as module
from pipegap.trainer.config.compose import Composer, compose
from pipegap.trainer.config.identity import trial_id
from pipegap.trainer.config.names import GROUPS, names, yamls
from pipegap.trainer.config.schema import validate
from tests.support import small
from tests.support.choices import words_of

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
    config = compose([*small.SMALL, *WORDS])
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
