"""A store with one damaged file: it is named or left aside, and no other trial suffers from it."""

import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipegap.analysis import load
from pipegap.analysis.__main__ import main as analysis
from pipegap.sweeps.__main__ import main as sweeps
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import points
from pipegap.trainer.__main__ import main as trainer
from pipegap.trainer.folder import lease
from pipegap.trainer.folder.wellformed import read_result
from pipegap.trainer.trial import run_trial
from tests.support import fuzzing, small_sweep
from tests.support.synthetic_store import LOSSES, record, write_arms
from tests.support.trials import Stop, rows, stop_at, untimed


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


def restore(place: Place) -> None:
    shutil.rmtree(place.folder / "results")
    for path, (content, changed) in place.files.items():
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
    def written(self, place: Place) -> Iterator[None]:
        """The store is damaged while the context lasts."""
        try:
            self._write()
            yield
        finally:
            restore(place)

    def _write(self) -> None:
        self.instead_of.unlink(missing_ok=True)
        if self.kind == "content":
            self.path.write_bytes(self.content)
            if self.is_old:
                os.utime(self.path, (time.time() - 1000,) * 2)
        elif self.kind in ODD:
            ODD[self.kind](self.path)


def draw_damage(data: st.DataObject, place: Place, paths: Sequence[Path]) -> Damage:
    """Of one of the files, or of one that is not there. Nothing is written while it is drawn."""
    path = data.draw(st.sampled_from([*paths]), "file")
    valid = place.files[path][0] if path in place.files else b"{}"
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
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
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
    place: Place, main: fuzzing.Main, words: Sequence[str], seconds: float = fuzzing.CPU_SECONDS
) -> fuzzing.Ended:
    """The end of a command that reads the store; it has changed nothing."""
    before = fuzzing.tree(place.folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place.folder)
        found = fuzzing.run(main, words, seconds)
    assert fuzzing.tree(place.folder) == before
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
def test_of_the_commands_that_read_it(place: Place, data: st.DataObject) -> None:
    damage = draw_damage(data, place, [*place.files])
    name = data.draw(st.sampled_from([*READERS]), "command")
    with damage.written(place):
        found = read(place, *READERS[name])
    require_named(found, damage.path)
    if name == "list":
        there = {row["trial_id"]: row for row in json.loads(found.out)}
        for trial_id, row in place.listed.items():
            assert there.get(trial_id) == row or damage.path.parent.name == trial_id


@fuzzing.inputs(4, share=0.05)
@given(data=st.data())
def test_of_a_trial_that_resumes(place: Place, data: st.DataObject) -> None:
    """It ends as it would have, or is refused and nothing was written."""
    own = [path for path in place.files if path.parent == place.interrupted]
    damage = draw_damage(data, place, [*own, place.interrupted / "result.json"])
    with damage.written(place):
        before = fuzzing.tree(place.folder)
        done = read_result(place.interrupted)
        words = ["--config", str(place.folder / "config.json")]
        with pytest.MonkeyPatch.context() as patch, redirect_stderr(io.StringIO()):
            patch.setattr(lease, "ACQUIRE_TIMEOUT", 0.0)
            found = fuzzing.run(trainer, words, 20)
        if found.code != 0:
            require_named(found, damage.path)
            assert fuzzing.tree(place.folder) == before
        elif done is None:
            result = json.loads((place.interrupted / "result.json").read_text())
            assert untimed(result) == place.whole
            assert rows(place.interrupted) == place.rows
