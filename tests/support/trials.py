"""The least that a result and the state of a checkpoint hold."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from safetensors.torch import load_file

from pipegap.sweeps.plan.sweep_plan import all_planned, plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.__main__ import main
from pipegap.trainer.base.errors import Stopped
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.folder import lease, record
from pipegap.trainer.folder.record import TrialFolder
from pipegap.trainer.folder.wellformed import Row
from pipegap.trainer.store.store import SweepStore
from pipegap.trainer.trial import run_trial
from tests.support import small_sweep
from tests.support.buckets import Bucket


def finished(**keys: Any) -> Row:
    """The result of a completed trial."""
    row = {"trial_id": "a", "status": "completed", "final_val_loss": 1.0, "num_updates": 12}
    return {**row, "wall_seconds": 1.0, "delays": [0], **keys}


def state(num_updates: int, trial_id: str = "a", **keys: Any) -> Row:
    """The state after `num_updates` of a trial without weights."""
    empty = {"config": {}, "executor": {}, "random": {}, "delays": [0]}
    losses = {"val_loss": 1.0, "train_seconds": 1.0}
    return {"trial_id": trial_id, "num_updates": num_updates, **empty, **losses, **keys}


def leave_finished(folder: Path, config: dict[str, Any], **result: Any) -> None:
    """Leaves the files of a trial that finished after 1,000 tokens, if `result` does not say."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "result.json").write_text(json.dumps({**finished(tokens=1000), **result}))


def leave_loss(folder: Path, loss: float | None) -> None:
    """Leaves the result of a trial that ended with this final loss; None: it diverged."""
    folder.mkdir(parents=True, exist_ok=True)
    status = "completed" if loss is not None else "diverged"
    (folder / "result.json").write_text(json.dumps(finished(status=status, final_val_loss=loss)))


# What tests of whole trials share: records without the clock, and ways to stop a trial.

ASYNC = ("pipeline=pipedream_2bw", "correction=error_feedback", "save_final=true")
TIMING = {"tokens_per_second", "wall_seconds", "finished_at"}
MACHINE = {
    *("git", "attempts", "peak_memory_bytes", "peak_memory_bytes_by_rank"),
    *("bubble", "bubble_by_rank", "update_wait_by_rank"),
}


def rows(folder: Path) -> list[Row]:
    """metrics.jsonl without what time and machine decide."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMING} for line in lines]


def untimed(result: Row) -> Row:
    return {k: v for k, v in result.items() if k not in TIMING | MACHINE}


def ran(folder: Path, name: str, *words: str) -> tuple[Row, list[Row]]:
    """Result and rows of the trial of these words, in the folder `name`."""
    result = run_trial(small_sweep.config(folder, *words, f"out={folder / name}"))
    return untimed(result), rows(folder / name)


class Stop(KeyboardInterrupt):
    pass


def stop_at(update: int) -> Any:
    def report(row: Row) -> None:
        if row["update"] == update:
            raise Stop

    return report


def checkpoint_after_5(config: dict[str, Any]) -> Path:
    """The checkpoint of a trial that was stopped after update 6, in the folder `out`."""
    with pytest.raises(Stop):
        run_trial(config, stop_at(6))
    [path] = Path(config["out"]).glob("checkpoint-000000005-*.pt")
    return path


def assert_same_end(folder: Path, name: str, other: str) -> None:
    """The same updates after that checkpoint, and the same final weights."""
    assert rows(folder / name)[-7:] == rows(folder / other)[-7:]
    ours, theirs = (load_file(folder / trial / "final.safetensors") for trial in (name, other))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def wait_for(condition: Any, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def main_while(words: Sequence[str], act: Callable[[], object]) -> int:
    """The exit code of `pipegap trial` with these words, in this process; `act` is called in
    another thread meanwhile."""
    with ThreadPoolExecutor(1) as beside:
        acting = beside.submit(act)
        code = main(words)
        acting.result()
    return code


# Attempts at a trial in a folder, without its training.


def row(update: int) -> Row:
    return {"update": update, "wall_seconds": float(update)}


def train(folder: TrialFolder, last: int) -> int:
    """Resumes, trains to update `last` and saves; returns the update that it began with."""
    path = folder.newest_checkpoint()
    first = 0 if path is None else int(record.load_own(path, "a")["num_updates"])
    folder.resume(first, path)
    for update in range(first, last):
        folder.append(row(update))
    folder.save(last, state(last))
    return first


@contextmanager
def attempt(path: Path, **made_by: object) -> Iterator[TrialFolder]:
    """The next attempt, without the end of the one before: as if that had fallen asleep."""
    for held in lease.attempts(path):
        held.write_text(json.dumps({**lease.read(held), "machine": "elsewhere"}))
        os.utime(held, (0, 0))
    with TrialFolder(path, "a").claimed({}, made_by) as folder:
        yield folder


def updates(path: Path) -> list[int]:
    lines = (path / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["update"] for line in lines]


def saved(path: Path) -> list[tuple[int, int]]:
    """Attempt and updates of each checkpoint."""
    return [(file.attempt, file.num_updates) for file in record.newest_first(path)]


# Trials of a store, as tests run them.


def trial_of(store: SweepStore, folder: Path, *words: str) -> Trial:
    config = small_sweep.config(folder, f"results={store.folder}", *words)
    return Trial("sync", config, plan_trial(config))


def run(store: SweepStore, trial: Trial, stop: Callable[[], bool] = lambda: False) -> Any:
    """Runs a trial as a driver with nothing else to run."""
    with store.driven():
        return work(store, trial, stop)


def work(store: SweepStore, trial: Trial, stop: Callable[[], bool] = lambda: False) -> Any:
    """Runs a trial as a worker of the store's driver."""
    with store.running(trial.config, trial.plan.trial_id) as running:
        return run_trial(running.config, asked_to_stop=lambda: stop() or running.is_lost())


def after(num: int) -> Callable[[], bool]:
    """True from the call after the first `num`."""
    calls = iter(range(num))
    return lambda: next(calls, None) is None


# A store with the trials of a sweep, in a folder or a bucket, for tests that damage it.

SWEEP = {
    "base": small_sweep.SMALL,
    "grid": {"optimizer": ["adamw"]},
    "arms": {"sync": ["pipeline=sync"], "delay": ["pipeline=pipedream_2bw"]},
    "seeds": [0, 1],
}


class Place(NamedTuple):
    """A store with the four trials of a sweep, of which the last one was stopped."""

    store: SweepStore
    server: Bucket
    words: list[str]
    trials: list[Trial]

    @property
    def ids(self) -> list[str]:
        return [trial.plan.trial_id for trial in self.trials]

    @property
    def is_bucket(self) -> bool:
        return "://" in self.store.name

    def write(self, path: str, content: bytes) -> None:
        """Write a file of the store."""
        if self.is_bucket:
            self.server.write(path, content)
        else:
            (self.store.folder / path).parent.mkdir(exist_ok=True)
            (self.store.folder / path).write_bytes(content)

    def remove(self, path: str) -> None:
        """Delete a file of the store."""
        self.server.remove(path) if self.is_bucket else (self.store.folder / path).unlink()

    def files(self, trial_id: str) -> dict[str, bytes]:
        """Return the files of a trial's folder by their names."""
        folder = f"trials/{trial_id}"
        if self.is_bucket:
            contents = self.server.objects
            return {Path(k).name: contents[k] for k in contents if Path(k).match(f"{folder}/*")}
        paths = (self.store.folder / folder).iterdir()
        return {path.name: path.read_bytes() for path in paths if path.is_file()}


def made(store: SweepStore, server: Bucket, folder: Path) -> Place:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.yaml").write_text(yaml.dump(SWEEP))
    words = [f"sweep={folder / 'a.yaml'}", "scale=micro", f"data.path={small_sweep.corpus(folder)}"]
    words.append(f"results={store.name}")
    trials = all_planned(plan_sweeps(parse_request(words)))
    for trial in trials[:-1]:
        run(store, trial)
    with pytest.raises(Stopped):
        run(store, trials[-1], after(1))
    store.pull()
    return Place(store, server, words, trials)
