"""A request's sweeps, planned by what their store has at one moment; and the seconds that their
trials will take, by the pace of finished trials of their shape."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pipegap.sweeps.plan.devices import compiler_seconds, counted_seconds, occupied
from pipegap.sweeps.plan.sweep_plan import SweepPlan, all_planned, plan_sweeps
from pipegap.sweeps.request.command_line import Request
from pipegap.sweeps.request.expand import Expected, Trial
from pipegap.trainer.base.build import label
from pipegap.trainer.config.names import YOUNGER, without_younger
from pipegap.trainer.folder.result import Row
from pipegap.trainer.folder.wellformed import CONFIG, read
from pipegap.trainer.store.snapshot import Snapshot
from pipegap.trainer.store.store import SweepStore

ASSUMED_START = 0.35
"""Seconds that a trial takes besides (bench/README.md): to build its parts, to write its record."""
SHAPE = (
    *("model", "seq_len", "batch_size", "num_replicas", "dtype", "runner", "num_threads"),
    *("eval_tokens", "eval_dtype"),
)
"""Keys that trials of one shape share, with the device, `compile`, stages and microbatches."""
MAX_READ = 2_000
"""How many trials of the store are read beside those of the plan, the newest first."""

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Round:
    """What is planned, done and to do. Every number of a round is of the same `seen` results."""

    request: Request
    store: SweepStore
    seen: Snapshot
    sweeps: Sequence[SweepPlan]

    @classmethod
    def first(cls, request: Request, store: SweepStore) -> "Round":
        """Return the round of now; raises BadInput for what can be known to be wrong."""
        store.pull()
        seen = Snapshot()
        return cls(request, store, seen, plan_sweeps(request, seen))

    def again(self) -> "Round":
        """Return the round of now, after this one. Raises StoreAway."""
        self.store.pull()
        seen = self.seen.again()
        return replace(self, seen=seen, sweeps=[sweep.refreshed(seen) for sweep in self.sweeps])

    @property
    def title(self) -> str:
        """The labels of its sweeps, for people."""
        return ", ".join(sweep.label for sweep in self.sweeps)

    @cached_property
    def planned(self) -> list[Trial]:
        """All trials, as far as they are known, each once, the longest first."""
        return all_planned(self.sweeps)

    @cached_property
    def todo(self) -> list[Trial]:
        """The planned trials that have to run."""
        return [trial for trial in self.planned if self.seen.finished(trial) is None]

    @property
    def runnable(self) -> list[Trial]:
        """Those of them that can run now."""
        ids = {trial.trial_id for sweep in self.sweeps for trial in sweep.runnable}
        return [trial for trial in self.todo if trial.trial_id in ids]

    @cached_property
    def prices(self) -> "Prices":
        """The seconds of a trial, by the finished ones."""
        return Prices(self.request.results, self.planned, self.seen)

    @cached_property
    def expected(self) -> Expected:
        """What each planned trial takes, and the compiler before those to do."""
        gpus = self.request.gpus_per_trial
        seconds = {t.trial_id: self.prices.seconds(t, occupied(t, gpus)) for t in self.planned}
        return Expected(seconds, compiler_seconds(self.todo))


class Pace(NamedTuple):
    """What a trial takes, by the clock."""

    tokens_per_second: float
    """Of the training alone."""
    seconds_per_evaluation: float
    """Of everything else, start and checkpoints included, divided by its evaluations."""


class Prices:
    """The seconds that trials take, start and evaluation included, by the paces of finished ones.

    Those of a shape with the same optimizer and pipeline go before others of the shape.
    """

    def __init__(self, store: Path, trials: Sequence[Trial], seen: Snapshot) -> None:
        """Take the paces of these trials; for shapes without a finished one, those of others of the
        store."""
        self._paces: dict[str, dict[str, list[Pace]]] = {}
        for trial in trials:
            if (result := seen.finished(trial)) is not None:
                self._add(trial.config, result)
        missing = {shape(trial.config) for trial in trials} - self._paces.keys()
        for folder in _newest(store / "trials") if missing else []:
            with suppress(OSError, ValueError, LookupError):  # not a trial, or an older one
                config = read(folder / "config.json", CONFIG)
                if shape(config) in missing and (result := seen.result(folder)) is not None:
                    self._add(config, result)

    def _add(self, config: Config, result: Row) -> None:
        """Add the pace of a finished trial, unless it trained on no token."""
        if result.get("tokens") and (speed := result["tokens_per_second"]):
            rest = max(0.0, result["wall_seconds"] - result["tokens"] / speed)
            pace = Pace(speed, rest / ceil(result["num_updates"] / config["eval_every"]))
            self._paces.setdefault(shape(config), {}).setdefault(_kind(config), []).append(pace)

    def measured_seconds(self, trial: Trial) -> float | None:
        """Return the seconds by the median pace of its shape; None if none of it has finished."""
        of_shape = self._paces.get(shape(trial.config))
        if of_shape is None:
            return None
        paces = of_shape.get(_kind(trial.config)) or [*chain.from_iterable(of_shape.values())]
        pace = Pace(*map(median, zip(*paces, strict=True)))
        training = trial.plan.tokens / pace.tokens_per_second
        return training + trial.plan.num_evaluations * pace.seconds_per_evaluation

    def seconds(self, trial: Trial, amount: float) -> float:
        """Return the measured seconds, or else those of the counted work on `amount` units."""
        measured = self.measured_seconds(trial)
        if measured is not None:
            return measured
        per_process = amount / trial.plan.num_processes
        return ASSUMED_START + counted_seconds(trial.config, trial.plan) / per_process


def shape(config: Config) -> str:
    """The keys that decide a trial's speed, as JSON."""
    pipeline = config["pipeline"]
    config = {**YOUNGER, **without_younger(config)}
    same = [config[key] for key in SHAPE]
    same += [config["device"].split(":")[0], config["compile"]]
    same += [pipeline["num_stages"], pipeline["num_microbatches"], pipeline.get("num_chunks", 1)]
    return json.dumps(same, sort_keys=True)


def _kind(config: Config) -> str:
    return f"{label(config['optimizer'])} {label(config['pipeline'])}"


def _newest(trials: Path) -> list[Path]:
    try:
        entries = [*os.scandir(trials)]
    except OSError:
        return []
    entries.sort(key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
    return [Path(entry.path) for entry in entries[:MAX_READ]]
