"""The user's own code may fail: one line says so, and where."""

import json
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
import yaml

from pipegap.sweeps.__main__ import main as sweeps
from pipegap.trainer.__main__ import _require_no_code, main
from pipegap.trainer.base.build import is_own, published
from pipegap.trainer.config.names import GROUPS, yamls
from pipegap.trainer.delayed import DelayedOptimizer, record
from tests.support import small

FACTORIES = """\
import sys
def model(*, vocab_size: int = 257, **_): return 5
def data(*, path: str = "", **_): return 5
def optimizer(parameters, *, lr: float = 0.1, weight_decay: float = 0.0): return 5
def correction(num_updates, lags): return 5
def lr_schedule(num_updates): return 5
def pipeline(num_updates, *, num_stages: int = 1, num_microbatches: int = 1): return 5
def raises(num_updates): raise ValueError("two\\nlines")
def exits(num_updates): sys.exit(0)
"""
KINDS = {
    **{"model": "Recipe", "data": "Source", "optimizer": "Optimizer"},
    **{"correction": "NoCorrection", "lr_schedule": "LrFactor", "pipeline": "Schedule"},
}


def refusal(
    folder: Path, source: str, group: str, name: str, capsys: pytest.CaptureFixture[str]
) -> str:
    """The line with which a trial ends that has this choice of the user's own."""
    module = f"own_code_{uuid4().hex}"  # imported by no test before
    (folder / "mine").mkdir()
    (folder / "mine" / f"{module}.py").write_text(source)
    config = small.config(folder, f"out={folder / 'out'}")
    config |= {
        "code": str(folder / "mine"),
        "choices": None,
        group: {"_target_": f"{module}.{name}"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        assert main(["--config", str(folder / "config.json"), f"code={folder / 'mine'}"]) == 2
    printed = capsys.readouterr()
    assert (printed.err.count("\n"), printed.out) == (1, "")
    assert not (folder / "out").exists()
    assert f"{group}._target_={module}.{name}: must " in printed.err
    return printed.err.replace(str(folder / "mine" / f"{module}.py"), "{file}")


def test_a_module_that_cannot_be_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(tmp_path, "import sys\nsys.exit(3)\n", "lr_schedule", "any", capsys)
    assert "must be importable (SystemExit: 3, {file}:2)" in line


@pytest.mark.parametrize("group", KINDS)
def test_a_factory_that_makes_something_else(
    group: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(tmp_path, FACTORIES, group, group, capsys)
    assert f"must make a {KINDS[group]} (" in line
    assert "this one lacks " in line


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", r"fails: ValueError: two\nlines, {file}:8"),
        ("exits", "fails: SystemExit: 0, {file}:9"),
    ],
)
def test_a_factory_that_fails(
    name: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refusal(tmp_path, FACTORIES, "lr_schedule", name, capsys)


def test_a_pipeline_without_its_keywords(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(tmp_path, FACTORIES, "pipeline", "lr_schedule", capsys)
    assert "must take the keyword num_stages" in line


def strange(folder: Path, patch: pytest.MonkeyPatch) -> str:
    """The name of a module that can be imported, and leaves a file `ran` where it is."""
    module = f"own_code_{uuid4().hex}"
    (folder / f"{module}.py").write_text(
        f"from pathlib import Path\nPath({str(folder / 'ran')!r}).touch()\n"
        "def flat(num_updates): return lambda update: 1.0\n"
    )
    patch.setattr(sys, "path", [*sys.path, str(folder)])
    return module


def test_a_part_of_pipegap_builds_no_part_of_a_stranger_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small.config(tmp_path) | {"choices": None}
    config["data"] = {
        "_target_": "pipegap.trainer.rehearsal.Excerpt",
        "source": {"_target_": f"{strange(tmp_path, monkeypatch)}.flat"},
        **{"path": None, "rows": 1, "seq_len": 8},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["--config", str(tmp_path / "config.json")]) == 2
    assert capsys.readouterr().err.startswith("pipegap trial: data.source._target_=own_code_")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("named", ["code", "lr_schedule._target_"])
def test_a_config_of_others_imports_nothing_of_its_own(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = strange(tmp_path, monkeypatch)
    config = small.config(tmp_path) | {"choices": None}
    config["lr_schedule"] = {"_target_": f"{module}.flat"}
    if named == "code":
        config["code"] = str(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ["--cfg", "--config", str(tmp_path / "config.json")]

    assert main(words) == 2
    printed = capsys.readouterr()
    assert not (tmp_path / "ran").exists()
    assert printed.err.startswith(f"pipegap trial: {named}=")
    assert "give code=DIR too if you trust it" in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")

    assert main([*words, f"code={tmp_path}"]) == 0
    assert (tmp_path / "ran").exists()
    assert json.loads(capsys.readouterr().out)["code"] == str(tmp_path)


@pytest.mark.parametrize(
    ("group", "node"),
    [
        ("data", {"_target_": "pipegap.trainer.base.children.mapped"}),
        ("optimizer", {"_target_": "trainer.base.scratch.scratch", "base": "/tmp"}),
        ("lr_schedule", {"_target_": "trainer.optimizers.adamw"}),  # a choice of another group
        ("pipeline", {"_target_": "trainer.schedules.sync", "more": {"_target_": "trainer.x"}}),
    ],
)
def test_a_config_of_others_calls_nothing_of_pipegap_that_is_no_choice(
    group: str, node: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small.config(tmp_path) | {"choices": None, group: node}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["--cfg", "--config", str(tmp_path / "config.json")]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"pipegap trial: {group}.")
    assert "must be that of a choice of pipegap's" in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")


def test_every_choice_can_be_run_from_a_config_of_others() -> None:
    for group in GROUPS:
        for path in yamls(group):
            address = str((yaml.safe_load(path.read_text("utf-8")) or {}).get("_target_"))
            for spelt in {address, published(address), f"pipegap.{published(address)}"}:
                if is_own(spelt):
                    _require_no_code({group: {"_target_": spelt}})


def test_a_trial_of_a_loop_of_one_s_own_is_run_by_that_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `rerun` and by `--config`: a line that says which loop."""
    adamw = torch.optim.AdamW(torch.nn.Linear(2, 1).parameters())
    words = {"model": "mine", "data": "ours", "optimizer": "adamw", "seed": 3, "batch_size": 1}
    delayed = DelayedOptimizer(adamw, 1, 0.0)
    with (
        pytest.raises(KeyError),
        record(tmp_path, delayed, {**words, "seq_len": 4, "num_updates": 2}),
    ):
        raise KeyError("a failed trial")
    says = "was recorded by a loop of your own (model=mine, data=ours, optimizer=adamw, "
    assert sweeps(["rerun", f"results={tmp_path}", "status=failed", "dry_run=true"]) == 1
    assert says in capsys.readouterr().err
    [config] = tmp_path.glob("trials/*/config.json")
    assert main(["--config", str(config)]) == 2
    assert says in capsys.readouterr().err
