"""Odd command lines, sweep files and damaged stores are refused in one line, or accepted."""

import hashlib
import io
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from pipegap.analysis import load
from pipegap.analysis.__main__ import main as analysis
from pipegap.analysis.commands import COMMANDS as ANALYSES_DO
from pipegap.sweeps.__main__ import main as sweeps
from pipegap.sweeps.commands import COMMANDS as SWEEPS_DO
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import points
from pipegap.sweeps.request.schema import Sweep
from pipegap.trainer.__main__ import main as trainer
from pipegap.trainer.base.cli import split_command
from pipegap.trainer.base.places import CONF
from pipegap.trainer.config.schema import TrialConfig
from pipegap.trainer.folder import lease
from pipegap.trainer.folder.wellformed import read_result
from pipegap.trainer.trial import run_trial
from tests.support import fuzzing, small_sweep
from tests.support.synthetic_store import LOSSES, record, write_arms
from tests.support.trials import Stop, rows, stop_at, untimed

# Command lines and sweep files: either end leaves nothing behind.

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


# A store with one damaged file: it is named or left aside, and no other trial suffers from it.


class Place(NamedTuple):
    """A working folder with a store, and the files of that store as they were made."""

    folder: Path
    files: dict[Path, tuple[bytes, int]]
    interrupted: Path
    """The folder of the trial that was."""
    whole: dict[str, Any]
    """Its result when nothing is damaged, and below, its rows."""
    rows: list[dict[str, Any]]
    listed: dict[str, Any]
    """Trial → what `list` says of it."""

    def __repr__(self) -> str:
        """Short: hypothesis prints the arguments of a test that failed, and its warning of a long
        repr would stand in place of the failure."""
        return f"Place({self.folder})"


def restore(intact_store: Place) -> None:
    shutil.rmtree(intact_store.folder / "results")
    for path, (content, changed) in intact_store.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, ns=(changed, changed))


ODD: dict[str, Callable[[Path], None]] = {
    "folder": Path.mkdir,
    "dead link": lambda path: path.symlink_to("nowhere"),
}
"""What people's tools leave where a file must be."""


class Damage(NamedTuple):
    """What stands at `path` in place of `instead_of`: a file, one of ODD, or nothing."""

    instead_of: Path
    path: Path
    kind: str
    content: bytes
    is_old: bool

    @contextmanager
    def written(self, intact_store: Place) -> Iterator[None]:
        """The store is damaged while the context lasts."""
        try:
            self._write()
            yield
        finally:
            restore(intact_store)

    def _write(self) -> None:
        self.instead_of.unlink(missing_ok=True)
        if self.kind == "content":
            self.path.write_bytes(self.content)
            if self.is_old:
                os.utime(self.path, (time.time() - 1000,) * 2)
        elif self.kind in ODD:
            ODD[self.kind](self.path)


def draw_damage(data: st.DataObject, intact_store: Place, paths: Sequence[Path]) -> Damage:
    """Of one of the files, or of one that is not there. Nothing is written while it is drawn."""
    path = data.draw(st.sampled_from([*paths]), "file")
    valid = intact_store.files[path][0] if path in intact_store.files else b"{}"
    kind = data.draw(st.sampled_from(("content",) * 8 + (*ODD, "missing")))
    is_old = data.draw(st.booleans(), "old")
    if kind != "content":
        return Damage(path, path, kind, b"", is_old)
    if path.suffix == ".pt":
        name, content = _checkpoint(data, path.name, valid)
        return Damage(path, path.with_name(name), kind, content, is_old)
    by_suffix = {".json": fuzzing.json_files, ".jsonl": fuzzing.lines}
    content = data.draw(by_suffix.get(path.suffix, fuzzing.contents)(valid), "content")
    return Damage(path, path, kind, content, is_old)


def _checkpoint(data: st.DataObject, name: str, valid: bytes) -> tuple[str, bytes]:
    """A checkpoint whose bytes were changed, whose digest may be right all the same, or which has
    another name, or another state."""
    content = data.draw(fuzzing.contents(valid), "content")
    if data.draw(st.booleans(), "a state"):
        state = torch.load(io.BytesIO(valid), weights_only=True)
        key = data.draw(st.sampled_from([*state]), "key")
        if data.draw(st.booleans(), "drop"):
            del state[key]
        elif key not in ("executor", "random"):  # what is in there is known by its digest alone
            state[key] = data.draw(fuzzing.values())
        buffer = io.BytesIO()
        torch.save(state, buffer)
        content = buffer.getvalue()
    if data.draw(st.booleans(), "right digest"):
        digest = hashlib.sha256(content).hexdigest()[:16]
        updates = data.draw(st.sampled_from(("000000005", "000000007", "9" * 12, "0")))
        name = f"checkpoint-{updates}-000001-{digest}.pt"
    return name, content


SWEEP = {
    "base": small_sweep.SMALL,
    "grid": {"optimizer": ["adamw"]},
    "arms": {"sync": ["pipeline=sync"], "delay": ["pipeline=pipedream_2bw"]},
    "seeds": [0],
    "verdict": "none",
}
READERS = {
    "list": (sweeps, ["list", "results=results", "format=json"]),
    "rerun": (sweeps, ["rerun", "results=results", "status=interrupted", "dry_run=true"]),
    "prune": (sweeps, ["prune", "results=results", "checkpoints=all", "dry_run=true"]),
    "status": (sweeps, ["status", "sweep=a.yaml", "scale=micro", "results=results"]),
    "run": (sweeps, ["sweep=a.yaml", "scale=micro", "results=results", "dry_run=true"]),
    "advise": (analysis, ["advise", "optimizer=adamw", "stages=2", "microbatches=4"]),
}


@pytest.fixture(scope="module")
def intact_store(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("fuzz")
    small_sweep.corpus(folder)
    (folder / "a.yaml").write_text(yaml.dump(SWEEP))
    words = ["sweep=a.yaml", "scale=micro", f"data.path={folder / 'corpus'}", *small_sweep.SMALL]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_arms(folder / "results", LOSSES)
        asked = parse_request([*words, "results=results"])
        [point] = points(next(iter(asked.sweeps.values())), Path("results"))
        sync, delayed = (trial.config for trial in point.trials([0]))
        (folder / "config.json").write_text(json.dumps(delayed))
        run_trial(sync)
        whole = run_trial({**delayed, "out": str(folder / "whole")})
        with pytest.raises(Stop):
            run_trial(delayed, stop_at(7))
        for command in READERS.values():
            if command[1][0] in ("status", "sweep=a.yaml"):
                command[1].extend(words[2:])
        ids = sorted(path.name for path in (folder / "results" / "trials").iterdir())
        record(folder / "results", "main", "tiny", ids)
        load("results")
        listed, *_ = fuzzing.warm(*READERS.values())
    [interrupted] = (folder / "results").glob("trials/*/checkpoint-*.pt")
    files = {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted((folder / "results").rglob("*"))
        if path.is_file()
    }
    return Place(
        folder,
        files,
        interrupted.parent,
        untimed(whole),
        rows(folder / "whole"),
        {row["trial_id"]: row for row in json.loads(listed.out)},
    )


def read(
    intact_store: Place,
    main: fuzzing.Main,
    words: Sequence[str],
    seconds: float = fuzzing.CPU_SECONDS,
) -> fuzzing.Ended:
    """The end of a command that reads the store; it has changed nothing."""
    before = fuzzing.tree(intact_store.folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(intact_store.folder)
        found = fuzzing.run(main, words, seconds)
    assert fuzzing.tree(intact_store.folder) == before
    return found


def require_named(found: fuzzing.Ended, path: Path) -> None:
    """It was accepted, refused or, by `rerun` with exit code 1, left out, in few lines that name
    the file or its trial. Where no trial is selected, the last line says so; it stands alone if the
    interrupted one runs, for all that its attempt says."""
    said = found.err.splitlines()
    if said and said[-1].startswith("no trial with "):
        assert said[:-1] or path.match(lease.PATTERN), found
        said.pop()
    left_out = found.code == 1 and said[-1].startswith("left out: ")
    assert len(said) <= 1 + left_out, found
    assert found.code == 0 or (found.code == 2 and said) or left_out, found
    assert all(path.name in line or path.parent.name in line for line in said), found


@fuzzing.inputs(25)
@given(data=st.data())
def test_of_the_commands_that_read_it(intact_store: Place, data: st.DataObject) -> None:
    damage = draw_damage(data, intact_store, [*intact_store.files])
    name = data.draw(st.sampled_from([*READERS]), "command")
    with damage.written(intact_store):
        found = read(intact_store, *READERS[name])
    require_named(found, damage.path)
    if name == "list":
        there = {row["trial_id"]: row for row in json.loads(found.out)}
        for trial_id, row in intact_store.listed.items():
            assert there.get(trial_id) == row or damage.path.parent.name == trial_id


@fuzzing.inputs(4, share=0.05)
@given(data=st.data())
def test_of_a_trial_that_resumes(intact_store: Place, data: st.DataObject) -> None:
    """It ends as it would have, or is refused and nothing was written."""
    own = [path for path in intact_store.files if path.parent == intact_store.interrupted]
    damage = draw_damage(data, intact_store, [*own, intact_store.interrupted / "result.json"])
    with damage.written(intact_store):
        before = fuzzing.tree(intact_store.folder)
        done = read_result(intact_store.interrupted)
        words = ["--config", str(intact_store.folder / "config.json")]
        with pytest.MonkeyPatch.context() as patch, redirect_stderr(io.StringIO()):
            patch.setattr(lease, "ACQUIRE_TIMEOUT", 0.0)
            found = fuzzing.run(trainer, words, 20)
        if found.code != 0:
            require_named(found, damage.path)
            assert fuzzing.tree(intact_store.folder) == before
        elif done is None:
            result = json.loads((intact_store.interrupted / "result.json").read_text())
            assert untimed(result) == intact_store.whole
            assert rows(intact_store.interrupted) == intact_store.rows
