"""A store with the trials of a sweep, in a folder or a bucket, for tests that damage it."""

from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from pipegap.sweeps.plan.sweep_plan import all_planned, plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.errors import Stopped
from pipegap.trainer.store.store import SweepStore
from tests.support import small
from tests.support.bucket import Bucket
from tests.support.stored import after, run

SWEEP = {
    "base": small.SMALL,
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
    words = [f"sweep={folder / 'a.yaml'}", "scale=micro", f"data.path={small.corpus(folder)}"]
    words.append(f"results={store.name}")
    trials = all_planned(plan_sweeps(parse_request(words)))
    for trial in trials[:-1]:
        run(store, trial)
    with pytest.raises(Stopped):
        run(store, trials[-1], after(1))
    store.pull()
    return Place(store, server, words, trials)
