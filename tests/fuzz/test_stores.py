"""A store with one damaged file: it is named or left aside, and no other trial suffers from it."""

import io
import json
import shutil
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path

import pytest
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
from pipegap.trainer.folder.result import read_result
from pipegap.trainer.trial import run_trial
from tests.support import fuzzing, small
from tests.support.damage import Damage, Place, draw_damage
from tests.support.synthetic_store import LOSSES, record, write_arms
from tests.support.trials import Stop, rows, stop_at, untimed

SWEEP = {
    "base": small.SMALL,
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
    small.corpus(folder)
    (folder / "a.yaml").write_text(yaml.dump(SWEEP))
    words = ["sweep=a.yaml", "scale=micro", f"data.path={folder / 'corpus'}", *small.SMALL]
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
    shutil.rmtree(place.folder / "report", ignore_errors=True)
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


@fuzzing.inputs(6, share=0.05)
@given(data=st.data())
def test_of_a_trial_that_resumes(place: Place, data: st.DataObject) -> None:
    """It ends as it would have, or is refused and nothing was written."""
    own = [path for path in place.files if path.parent == place.interrupted]
    damage = draw_damage(data, place, [*own, place.interrupted / "result.json"])
    with damage.written(place):
        check_resumed(place, damage)


def check_resumed(place: Place, damage: Damage) -> None:
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
