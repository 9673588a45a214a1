"""The speed of trials, measured on finished ones of the same shape in the store."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from trainer.base.build import label
from trainer.folder.record import Row, read_result
from trainer.folder.wellformed import CONFIG, read

SHAPE = ("model", "seq_len", "batch_size", "num_replicas", "dtype", "runner", "num_threads")
"""Keys that trials of one shape share, with the device, `compile`, stages and microbatches."""
MAX_READ = 2_000
"""How many trials of the store are read beside those of the plan, the newest first."""

Config = Mapping[str, Any]


class Throughput:
    """Tokens per second by shape, without evaluation and start-up.

    Of a shape's trials those with the same optimizer and pipeline count, or all if there is none.
    """

    def __init__(self) -> None:
        self._speeds: dict[str, dict[str, list[float]]] = {}

    def add(self, config: Config, result: Row) -> None:
        """Adds the speed of a finished trial, unless it trained on no token."""
        if result.get("tokens"):
            of_shape = self._speeds.setdefault(shape(config), {})
            of_shape.setdefault(_kind(config), []).append(float(result["tokens_per_second"]))

    def of(self, config: Config) -> float | None:
        """The median speed of the config's shape; None if no trial of it has finished."""
        of_shape = self._speeds.get(shape(config), {})
        speeds = of_shape.get(_kind(config)) or [*chain.from_iterable(of_shape.values())]
        return median(speeds) if speeds else None

    def add_from(self, store: Path, wanted: Iterable[Config]) -> None:
        """Adds the trials of the store whose shape is that of a `wanted` config without any."""
        missing = {shape(config) for config in wanted if self.of(config) is None}
        for folder in _newest(store / "trials") if missing else []:
            with suppress(OSError, ValueError, LookupError):  # not a trial, or an older one
                config = read(folder / "config.json", CONFIG)
                if shape(config) in missing and (result := read_result(folder)) is not None:
                    self.add(config, result)


def shape(config: Config) -> str:
    """The keys that decide a trial's speed, as JSON."""
    pipeline = config["pipeline"]
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
