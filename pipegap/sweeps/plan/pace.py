"""The seconds that trials will take, start and evaluation included: by the pace of finished ones of
their shape, or else by their counted work."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pipegap.sweeps.plan.devices import compiler_seconds, counted_seconds, occupied
from pipegap.sweeps.request.expand import Expected, Trial
from pipegap.trainer.base.build import published
from pipegap.trainer.base.former import YOUNGER
from pipegap.trainer.config.names import without_younger
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


Paces = dict[str, dict[str, list[Pace]]]
"""Shape → optimizer and pipeline → the paces of finished trials."""


def expected(
    store: Path,
    trials: Sequence[Trial],
    todo: Sequence[Trial],
    seen: Snapshot,
    gpus_per_trial: float,
) -> Expected:
    """Return what these trials take, by the results that were seen, and the compiler before those
    `todo`."""
    paces = _paces(store, trials, seen)
    known = [trial for trial in trials if shape(trial.config) in paces]
    by_pace = {trial.trial_id: _seconds(trial, paces) for trial in known}
    counted = {t.trial_id: _counted(t, gpus_per_trial) for t in trials if t.trial_id not in by_pace}
    return Expected({**by_pace, **counted}, compiler_seconds(todo), by_pace.keys())


def _paces(store: Path, trials: Sequence[Trial], seen: Snapshot) -> Paces:
    """Return the paces of these trials; for shapes without a finished one, those of others of the
    store."""
    paces: Paces = {}
    for trial in trials:
        if (result := seen.finished(trial)) is not None:
            _add(paces, trial.config, result)
    missing = {shape(trial.config) for trial in trials} - paces.keys()
    for folder in _newest(store / "trials") if missing else []:
        with suppress(OSError, ValueError, LookupError):  # not a trial, or an older one
            config = read(folder / "config.json", CONFIG)
            if shape(config) in missing and (result := seen.result(folder)) is not None:
                _add(paces, config, result)
    return paces


def _add(paces: Paces, config: Config, result: Mapping[str, Any]) -> None:
    """Add the pace of a finished trial, unless it trained on no token."""
    if result.get("tokens") and (speed := result["tokens_per_second"]):
        rest = max(0.0, result["wall_seconds"] - result["tokens"] / speed)
        pace = Pace(speed, rest / ceil(result["num_updates"] / config["eval_every"]))
        paces.setdefault(shape(config), {}).setdefault(_kind(config), []).append(pace)


def _seconds(trial: Trial, paces: Paces) -> float:
    """Return the seconds by the median pace of a trial's shape. Those with its optimizer and
    pipeline go before others."""
    of_shape = paces[shape(trial.config)]
    alike = of_shape.get(_kind(trial.config)) or [*chain.from_iterable(of_shape.values())]
    pace = Pace(*map(median, zip(*alike, strict=True)))
    training = trial.plan.tokens / pace.tokens_per_second
    return training + trial.plan.num_evaluations * pace.seconds_per_evaluation


def _counted(trial: Trial, gpus_per_trial: float) -> float:
    """Return the seconds of the counted work of a trial, on the cores or GPUs that it occupies."""
    per_process = occupied(trial, gpus_per_trial) / trial.plan.num_processes
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
    """What the optimizer and the pipeline are, by their addresses."""
    return " ".join(published(config[group]["_target_"]) for group in ("optimizer", "pipeline"))


def _newest(trials: Path) -> list[Path]:
    try:
        entries = [*os.scandir(trials)]
    except OSError:
        return []
    entries.sort(key=lambda entry: entry.stat().st_mtime_ns, reverse=True)
    return [Path(entry.path) for entry in entries[:MAX_READ]]
