"""Odd command lines and sweep files are refused in one line, or accepted; either leaves nothing
behind."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from pipegap.analysis.__main__ import main as analysis
from pipegap.analysis.commands import COMMANDS as ANALYSES_DO
from pipegap.sweeps.__main__ import main as sweeps
from pipegap.sweeps.commands import COMMANDS as SWEEPS_DO
from pipegap.sweeps.request.schema import Sweep
from pipegap.trainer.__main__ import main as trainer
from pipegap.trainer.base.cli import split_command
from pipegap.trainer.base.places import CONF
from pipegap.trainer.config.schema import TrialConfig
from tests.support import fuzzing, small_sweep
from tests.support.synthetic_store import LOSSES, write_arms

KEYS = (
    *TrialConfig.model_fields,
    *("optimizer.lr", "optimizer.weight_decay", "model.hidden_size", "model.num_layers"),
    *("model.vocab_size", "data.path", "pipeline.num_stages", "pipeline.num_microbatches"),
    *("pipeline.synchronous_start", "correction.coefficient", "lr_schedule.warmup"),
    *("hydra.run.dir", "optimizer._target_", "+new", "~seed", "++seed", "--cfg", "--config"),
    *("--multirun", "-x"),
)
TRIALS = (
    ("optimizer=muon", "pipeline=pipedream_2bw", "correction=error_feedback", "seed=1"),
    ("optimizer=lion", "pipeline.num_stages=4", "pipeline.num_microbatches=8"),
    ("num_updates=12", "batch_size=4", "seq_len=16", "optimizer.lr=0.01", "out=trial"),
    ("model=tiny", "data=wiki", "runner=pipelined", "trace=true", "timeout=60"),
    ("tokens_per_parameter=20", "num_updates=null", "lr_schedule=wsd", "clip_norm=null"),
)
SWEEPS = (
    ("sweep=main", "scale=micro"),
    ("run", "sweep=main", "scale=tiny", "seeds=[0]", "grid.optimizer=[adamw,muon]"),
    ("sweep=staleness", "scale=micro", "seeds=[0,1]", "num_updates=30"),
    ("sweep=main", "scale=micro", "tune.optimizer.lr=[0.5,1,2]", "gpus_per_trial=0.5"),
    ("status", "sweep=main", "scale=micro"),
    ("list", "status=completed", "columns=trial_id,arm", "format=json"),
    ("list", "optimizer=muon", "optimizer.lr=0.004", "seed=0,1", "arm=delay*"),
    ("rerun", "status=failed", "force=true"),
    ("prune", "checkpoints=all", "status=interrupted"),
    ("dashboard", "sweep=main", "scale=tiny"),
    ("evaluate", "sweep=main", "scale=micro", "tasks=[copa,piqa]", "limit=5", "max_length=64"),
)
OF_SWEEPS = (
    *("sweep", "scale", "results", "seeds", "grid.optimizer", "grid.seed", "tune.optimizer.lr"),
    *("gpus_per_trial", "tracking", "tracking.project", "columns", "format", "status", "seed"),
    *("force", "checkpoints", "arm", "optimizer.lr", "final_val_loss", "finished_at", "folder"),
    *("num_updates", "optimizer", "pipeline.num_stages", "address", "again", "tasks", "limit"),
    *("benchmarks", "-h=", "--help=", "out"),
)
ANALYSES = (
    ("advise", "optimizer=adamw", "stages=4", "microbatches=8"),
    ("advise", "optimizer=adamw", "stages=2", "microbatches=4", "updates=400", "format=json"),
    ("advise", "optimizer=muon", "stages=2", "microbatches=4", "forward=8,6", "update=1"),
    ("report", "results=nowhere"),
)
OF_ANALYSES = (
    *("optimizer", "stages", "microbatches", "updates", "forward", "backward", "update", "out"),
    *("communication", "format", "batch_size", "num_parameters", "arm", "finished_at", "label"),
    *("port",),
)


SMALL = f"""\
base: [{", ".join(small_sweep.SMALL)}]
scales: {{micro: [eval_every=6]}}
grid:
  optimizer: [adamw, muon]
  shape: [{{batch_size: 8, seq_len: 16}}, {{batch_size: 4, seq_len: 32}}]
arms:
  sync: [pipeline=sync]
  delay_ef: [pipeline=pipedream_2bw, correction=error_feedback]
seeds: [0, 1]
tune: {{optimizer.lr: [0.5, 1, 2]}}
early_stop: {{margin: 0.5}}
advice: {{stages: 2, microbatches: 2, arms: [delay_ef]}}
verdict: none
"""
QUICK = ("main", "gradient_feedback")
"""Sweeps whose plan is made in a fraction of a second."""
FILES = [SMALL, *((CONF / "sweep" / f"{name}.yaml").read_text() for name in QUICK)]
PRICED = ("sweep=a.yaml", "scale=micro", "data.path=corpus", "results=store", "dry_run=true")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a store, a small corpus and a sweep file."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "a.yaml").write_text(SMALL)
    write_arms(folder / "results", LOSSES)
    small_sweep.corpus(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        *_, priced = fuzzing.warm(
            (trainer, ["--cfg"]),
            (sweeps, ["sweep=main", "scale=micro", "dry_run=true"]),
            (sweeps, ["list"]),
            (sweeps, ["dashboard"]),
            (analysis, ["advise", *ANALYSES[0][1:]]),
            (sweeps, PRICED),
        )
    assert priced.code == 0
    return folder


def check(
    place: Path,
    program: str,
    main: fuzzing.Main,
    words: Sequence[str],
    known: Collection[str] | None = None,
) -> None:
    """`known`: what a message may name, if it is not the keys of the words."""
    before = fuzzing.tree(place)
    passed = fuzzing.passable(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        found = fuzzing.run(main, passed)
    fuzzing.require_one_line(found, program, names(passed) if known is None else known)
    assert fuzzing.tree(place) == before


def program(words: Sequence[str], commands: Collection[str], default: str) -> str:
    """What the line of a refusal begins with."""
    return f"pipegap {split_command(fuzzing.passable(words), commands, default)[0]}"


def names(words: Sequence[str]) -> set[str]:
    """What a message may name: the keys of the words, or those that are always there."""
    given = {word.split("=")[0].lstrip("+~-") for word in words}
    parts = {part for key in given for part in key.split(".")}
    empty = {"="} & {f"{word}=" for word in words}  # a word without any character
    return {*given, *parts, *words, *empty, *TrialConfig.model_fields, *OF_SWEEPS, *OF_ANALYSES}


@fuzzing.inputs(30)
@given(words=fuzzing.commands(TRIALS, KEYS))
@example(words=["\0"])  # a word that is empty where it arrives
def test_of_a_trial(place: Path, words: list[str]) -> None:
    check(place, "pipegap trial", trainer, ["--cfg", *words])


@fuzzing.inputs(15)
@given(words=fuzzing.commands(SWEEPS, OF_SWEEPS))
def test_of_sweeps(place: Path, words: list[str]) -> None:
    """Without what needs a network: a cluster, or the server of a tracker."""
    first = words[0] if words else ""
    if first in ("submit", "jobs", "stop"):
        return
    kept = [word for word in words if not word.startswith(("watch=", "mode=", "tracking.mode="))]
    last = ["dry_run=true"] if first not in ("status", "list", "dashboard") else []
    check(place, program(words, SWEEPS_DO, "sweep"), sweeps, [*kept, *last])


@fuzzing.inputs(30)
@given(words=fuzzing.commands(ANALYSES, OF_ANALYSES))
def test_of_the_analysis(place: Path, words: list[str]) -> None:
    """A report of a store would be written: here there is none to read."""
    kept = [*words]
    if words[:1] != ["advise"]:
        kept += [f"out={place}/report", "results=nowhere"]
    check(place, program(words, ANALYSES_DO, "report"), analysis, kept)


@st.composite
def files(draw: fuzzing.Draw) -> bytes:
    """The text of a file changed, or its values; mostly that of the small one."""
    valid = draw(st.sampled_from(FILES)) if draw(st.integers(0, 3)) == 0 else SMALL
    how = draw(st.sampled_from(("values", "values", "text", "bytes", "any")))
    if how == "values":
        return _dumped(draw(fuzzing.trees(yaml.safe_load(valid))))
    if how == "text":
        return draw(fuzzing.texts(valid)).encode(errors="replace")
    if how == "bytes":
        return draw(fuzzing.contents(valid.encode()))
    return draw(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))


def _dumped(tree: Any) -> bytes:
    return yaml.dump(tree, allow_unicode=True, sort_keys=False).encode(errors="replace")


@fuzzing.inputs(40)
@given(content=files())
def test_of_a_sweep_file(place: Path, content: bytes) -> None:
    (place / "a.yaml").write_bytes(content)
    told = re.findall(r"[\w.]+", content.decode(errors="replace"))
    known = {"sweep", *Sweep.model_fields, *TrialConfig.model_fields, *told}
    check(place, "pipegap sweep", sweeps, PRICED, known)
