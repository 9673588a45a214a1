"""The seconds that trials will take, start and evaluation included: by the pace of finished ones of
their shape, or else by their counted work."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pipegap.sweeps.plan.devices import (
    compiler_seconds,
    counted_seconds,
    counted_update_and_forward,
    measure_again,
    occupied,
)
from pipegap.sweeps.request.expand import Expected, Trial
from pipegap.trainer.base.build import published
from pipegap.trainer.base.former import YOUNGER
from pipegap.trainer.config.names import without_younger
from pipegap.trainer.folder import lease
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
OFF, MOST_COMPARED, LEAST_SECONDS = 2.0, 20, 1.0
"""Measured rates are measured again where trials take this many times as long as counted, or as
short: so many trials at most, the newest of the store, that trained for some time."""

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
    snapshot: Snapshot,
    gpus_per_trial: float,
) -> Expected:
    """Return what these trials take, by the results that were seen, and the compiler before those
    `todo`.

    Those of a shape that no finished trial has are counted. If the finished ones of other shapes
    disagree with what is counted of them, the rates of this machine are measured again.
    """
    paces, ratios = _paces(store, trials, snapshot)
    to_count = [trial for trial in trials if shape(trial.config) not in paces]
    if to_count and ratios and not 1 / OFF < median(ratios) < OFF:
        measure_again()
    seconds_counted = {trial.trial_id: _counted(trial, gpus_per_trial) for trial in to_count}
    by_pace = {t.trial_id: _seconds(t, paces) for t in trials if t.trial_id not in seconds_counted}
    return Expected({**by_pace, **seconds_counted}, compiler_seconds(todo), by_pace.keys())


def _paces(store: Path, trials: Sequence[Trial], snapshot: Snapshot) -> tuple[Paces, list[float]]:
    """Return the paces of these trials; for shapes without a finished one, those of others of the
    store. And `_times_counted` of finished trials of any shape, if shapes are missing."""
    paces: Paces = {}
    finished = [(t.folder, t.config, result) for t in trials if (result := snapshot.finished(t))]
    for _, config, result in finished:
        _add(paces, config, result)
    missing = {shape(trial.config) for trial in trials} - paces.keys()
    for folder in _newest(store / "trials") if missing else []:
        with suppress(OSError, ValueError, LookupError):  # not a trial, or an older one
            config = read(folder / "config.json", CONFIG)
            is_alike = shape(config) in missing
            is_read = is_alike or len(finished) < MOST_COMPARED
            if is_read and (result := snapshot.result(folder)) is not None:
                finished.append((folder, config, result))
                if is_alike:
                    _add(paces, config, result)
    compared = [_times_counted(*trial) for trial in finished[:MOST_COMPARED]] if missing else []
    return paces, [ratio for ratio in compared if ratio is not None]


def _times_counted(folder: Path, config: Config, result: Mapping[str, Any]) -> float | None:
    """Return how many times its counted seconds a trial trained on cores of this machine.

    None of any other trial, one of a person's own code, which nobody may want to import, and one
    too short to tell.
    """
    with suppress(ValueError, LookupError, TypeError):  # of an older release, or a loop of others
        config = {**YOUNGER, **config}
        seconds = result["tokens"] / result["tokens_per_second"]
        is_here = all(attempt.get("host") == platform.node() for attempt in lease.trained(folder))
        if config["device"] == "cpu" and not config["code"] and is_here and seconds > LEAST_SECONDS:
            update, _ = counted_update_and_forward(config, result["num_updates"])
            tokens = config["batch_size"] * config["seq_len"]
            seconds_counted = result["tokens"] / tokens * update / config["num_threads"]
            return seconds / seconds_counted
    return None


def _add(paces: Paces, config: Config, result: Mapping[str, Any]) -> None:
    """Add the pace of a finished trial, unless it trained on no token."""
    if result.get("tokens") and (speed := result["tokens_per_second"]):
        overhead = max(0.0, result["wall_seconds"] - result["tokens"] / speed)
        pace = Pace(speed, overhead / ceil(result["num_updates"] / config["eval_every"]))
        paces.setdefault(shape(config), {}).setdefault(_kind(config), []).append(pace)


def _seconds(trial: Trial, paces: Paces) -> float:
    """Return the seconds by the median pace of a trial's shape. Those with its optimizer and
    pipeline go before others."""
    of_shape = paces[shape(trial.config)]
    same_kind = of_shape.get(_kind(trial.config)) or [*chain.from_iterable(of_shape.values())]
    pace = Pace(*map(median, zip(*same_kind, strict=True)))
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
    changed = dict[str, int]()
    with suppress(OSError):
        for entry in os.scandir(trials):
            with suppress(OSError):  # a link that leads nowhere
                changed[entry.path] = entry.stat().st_mtime_ns
    return [*map(Path, sorted(changed, key=changed.__getitem__, reverse=True)[:MAX_READ])]
