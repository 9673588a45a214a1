"""Trials of a store, as tests run them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.store.store import SweepStore
from pipegap.trainer.trial import run_trial
from tests.support import small


def trial_of(store: SweepStore, folder: Path, *words: str) -> Trial:
    config = small.config(folder, f"results={store.folder}", *words)
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
