"""The pace of finished trials by their shape, and the seconds that others will take by it."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pipegap.sweeps.plan.devices import counted_seconds
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.build import label
from pipegap.trainer.config.names import YOUNGER, without_younger
from pipegap.trainer.folder.result import Row
from pipegap.trainer.folder.wellformed import CONFIG, read
from pipegap.trainer.store.snapshot import Snapshot

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


class Pace(NamedTuple):
    """What a trial takes, by the clock."""

    tokens_per_second: float
    """Of the training alone."""
    seconds_per_evaluation: float
    """Of everything else, start and checkpoints included, divided by its evaluations."""


class Throughput:
    """Paces by shape. Trials of a shape with the same optimizer and pipeline go before others."""

    def __init__(self) -> None:
        self._paces: dict[str, dict[str, list[Pace]]] = {}

    def add(self, config: Config, result: Row) -> None:
        """Adds the pace of a finished trial, unless it trained on no token."""
        if result.get("tokens") and result["tokens_per_second"]:
            of_shape = self._paces.setdefault(shape(config), {})
            of_shape.setdefault(_kind(config), []).append(_pace(config, result))

    def of(self, config: Config) -> Pace | None:
        """The median pace of the config's shape; None if no trial of it has finished."""
        of_shape = self._paces.get(shape(config), {})
        paces = of_shape.get(_kind(config)) or [*chain.from_iterable(of_shape.values())]
        return Pace(*map(median, zip(*paces, strict=True))) if paces else None

    def add_from(self, store: Path, wanted: Iterable[Config], seen: Snapshot) -> None:
        """Adds the trials of the store whose shape is that of a `wanted` config without any."""
        missing = {shape(config) for config in wanted if self.of(config) is None}
        for folder in _newest(store / "trials") if missing else []:
            with suppress(OSError, ValueError, LookupError):  # not a trial, or an older one
                config = read(folder / "config.json", CONFIG)
                if shape(config) in missing and (result := seen.result(folder)) is not None:
                    self.add(config, result)


def shape(config: Config) -> str:
    """The keys that decide a trial's speed, as JSON."""
    pipeline = config["pipeline"]
    config = {**YOUNGER, **without_younger(config)}
    same = [config[key] for key in SHAPE]
    same += [config["device"].split(":")[0], config["compile"]]
    same += [pipeline["num_stages"], pipeline["num_microbatches"], pipeline.get("num_chunks", 1)]
    return json.dumps(same, sort_keys=True)


def _pace(config: Config, result: Row) -> Pace:
    speed = float(result["tokens_per_second"])
    rest = max(0.0, float(result["wall_seconds"]) - result["tokens"] / speed)
    return Pace(speed, rest / ceil(result["num_updates"] / config["eval_every"]))


def _kind(config: Config) -> str:
    return f"{label(config['optimizer'])} {label(config['pipeline'])}"


def _newest(trials: Path) -> list[Path]:
    try:
        entries = [*os.scandir(trials)]
    except OSError:
        return []
    entries.sort(key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
    return [Path(entry.path) for entry in entries[:MAX_READ]]


@dataclass(frozen=True)
class Prices:
    """The seconds that trials take, start and evaluation included."""

    throughput: Throughput

    @classmethod
    def measured(cls, store: Path, trials: Sequence[Trial], seen: Snapshot) -> "Prices":
        """Return prices by the finished trials; for shapes without one, by others of the store."""
        throughput = Throughput()
        for trial in trials:
            if (result := seen.finished(trial)) is not None:
                throughput.add(trial.config, result)
        throughput.add_from(store, (trial.config for trial in trials), seen)
        return cls(throughput)

    def measured_seconds(self, trial: Trial) -> float | None:
        """Return the seconds by trials of its shape; None if none of them has finished."""
        pace = self.throughput.of(trial.config)
        if pace is None:
            return None
        training = trial.plan.tokens / pace.tokens_per_second
        return training + trial.plan.num_evaluations * pace.seconds_per_evaluation

    def seconds(self, trial: Trial, amount: float) -> float:
        """Return the measured seconds, or else those of the counted work on `amount` units."""
        measured = self.measured_seconds(trial)
        if measured is not None:
            return measured
        per_process = amount / trial.plan.num_processes
        return ASSUMED_START + counted_seconds(trial.config, trial.plan) / per_process
