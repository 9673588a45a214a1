"""A config has the keys of its choices, runs without Hydra, and its plan says what it will be."""

import inspect
import json
from pathlib import Path

import pytest

from pipegap.trainer.base.build import build, locate
from pipegap.trainer.base.places import CONF
from pipegap.trainer.config.compose import compose
from pipegap.trainer.config.identity import trial_id
from pipegap.trainer.config.plan import plan_trial
from tests.support import small
from tests.support.choices import words_of
from tests.support.processes import python

GROUPS = ("model", "data", "optimizer", "pipeline", "correction", "lr_schedule")
CHOICES = [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_a_choice_lists_exactly_the_keywords_of_its_target(group: str, choice: str) -> None:
    node = compose(words_of(group, choice))[group]
    target = locate(node.pop("_target_"))
    parameters = inspect.signature(target).parameters.values()
    assert set(node) == {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}


def test_help_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from pipegap.trainer.__main__ import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'hydra', 'pydantic'} & set(sys.modules), 'slow imports'"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert "muon" in done.stdout
    assert "batch_size: 16" in done.stdout
    for group in ("scale", "search", "sweep", "tracking"):  # of sweeps
        assert f"\n  {group}=" not in done.stdout


def test_a_resolved_config_runs_without_hydra(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(small.config(tmp_path, "num_updates=2")))
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['hydra', 'ray', 'wandb', 'pandas']))\n"
        "from pipegap.trainer.__main__ import main\n"
        f"sys.exit(main(['--config', '{path}', 'out={tmp_path / 'one'}']))"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "one" / "result.json").read_text())["num_updates"] == 2


def test_ways_to_write_a_number_name_the_same_trial(tmp_path: Path) -> None:
    ids = {
        plan_trial(small.config(tmp_path, f"optimizer.lr={lr}")).trial_id
        for lr in ("0.01", "1e-2", "0.010")
    }
    assert len(ids) == 1
    whole = {plan_trial(small.config(tmp_path, f"optimizer.lr={lr}")).trial_id for lr in "11"}
    assert whole == {plan_trial(small.config(tmp_path, "optimizer.lr=1.0")).trial_id}


def test_the_id_leaves_out_what_changes_no_number(tmp_path: Path) -> None:
    config = small.config(tmp_path)
    same = [{"results": "x"}, {"out": "x"}, {"save_final": True}, {"checkpoint_every": 3}]
    other = [{"seed": 1}, {"device": "cuda"}, {"num_threads": 2}, {"eval_batch_size": 8}]
    assert {trial_id({**config, **change}, "d") for change in same} == {trial_id(config, "d")}
    ids = {trial_id({**config, **change}, "d") for change in other} | {trial_id(config, "e")}
    assert len(ids) == len(other) + 1
    assert trial_id(config, "d") not in ids


def test_tokens_per_parameter_sets_the_number_of_updates(tmp_path: Path) -> None:
    words = ("num_updates=null", "tokens_per_parameter=20")
    config = small.config(tmp_path, *words)
    plan = plan_trial(config)
    assert plan.num_updates == round(20 * build(config["model"]).num_parameters / (4 * 16))
    assert plan.tokens == plan.num_updates * 4 * 16


def test_a_plan_knows_that_a_correction_has_nothing_to_correct(tmp_path: Path) -> None:
    def idle(*words: str) -> bool:
        return plan_trial(small.config(tmp_path, *words)).corrects_nothing

    assert idle("correction=taylor")
    assert idle("correction=taylor", "pipeline=pipedream_2bw", "pipeline.synchronous_start=1.0")
    assert not idle()
    assert not idle("correction=taylor", "pipeline=pipedream_2bw")
    assert not idle("correction=ema_nesterov"), "it looks ahead where nothing is late, too"


def test_a_store_that_a_folder_of_ones_own_replaces_may_be_anything(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    words = [f"results={tmp_path / 'loop'}", f"out={tmp_path / 'trial'}"]
    assert small.config(tmp_path, *words)["out"] == str(tmp_path / "trial")
