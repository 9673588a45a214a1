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

    def register(self, trial_id: str) -> str:
        return f"registers/{trial_id}.json"

    def objects(self, trial_id: str) -> list[str]:
        return [key for key in self.server.objects if f"trials/{trial_id}/" in key]


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
